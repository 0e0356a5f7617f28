"""A Kubernetes client of a few lines: enough to bring a cluster up without extra packages."""

import http.client
import json
import socket
import ssl
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

Object = dict[str, Any]

FIELD_MANAGER = "localcluster"
_TIMEOUT_S = 30.0


class ApiError(RuntimeError):
    """The API server refused a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """Requests to one API server, each on a connection of its own."""

    def __init__(self, url: str, token: str, ca: Path) -> None:
        """Talk to `url` as the owner of `token`, trusting only `ca`."""
        address = urllib.parse.urlsplit(url)
        self._host, self._port = address.hostname or "", address.port
        self._token = token
        self._tls = ssl.create_default_context(cafile=str(ca))

    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Any:
        """The decoded answer, or its text where it is no JSON.

        Raises:
            ApiError: The answer is an error.
            OSError: There is no answer.
        """
        status, content = self._exchange(method, path, body, content_type)
        decoded = _decode(content)
        if status >= http.HTTPStatus.BAD_REQUEST:
            message = decoded.get("message", "") if isinstance(decoded, dict) else str(decoded)
            raise ApiError(status, f"{method} {path}: {message}")
        return decoded

    def _exchange(
        self, method: str, path: str, body: Object | None, content_type: str
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection(
            self._host, self._port, context=self._tls, timeout=_TIMEOUT_S
        )
        try:
            headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type}
            encoded = None if body is None else json.dumps(body).encode()
            connection.request(method, path, body=encoded, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """The object at `path`."""
        return self.request("GET", path)

    def apply(self, thing: Object) -> Object:
        """Make the object so (server-side apply)."""
        query = urllib.parse.urlencode({"fieldManager": FIELD_MANAGER, "force": "true"})
        target = f"{path_of(thing)}?{query}"
        applied: Object = self.request("PATCH", target, thing, "application/apply-patch+yaml")
        return applied

    def merge(self, path: str, patch: Object) -> Object:
        """Merge `patch` into the object at `path`."""
        merged: Object = self.request("PATCH", path, patch, "application/merge-patch+json")
        return merged

    def is_ready(self) -> bool:
        """Whether the API server says that it is ready."""
        try:
            return bool(self.request("GET", "/readyz") == "ok")
        except (OSError, http.client.HTTPException, ApiError):
            return False


def path_of(thing: Object) -> str:
    """URL path of an object, whose resource is the plural of its kind."""
    version = thing["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = thing["metadata"].get("namespace")
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{scope}/{_plural(thing['kind'].lower())}/{thing['metadata']['name']}"


def _plural(word: str) -> str:
    """In English, by which API servers name resources; Endpoints is a plural already."""
    if word.endswith("points"):
        return word
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith("s") else f"{word}s"


def wait_for(
    what: str,
    is_so: Callable[[], bool],
    timeout_s: float,
    period_s: float = 0.05,
) -> None:
    """Return as soon as `is_so()`.

    Raises:
        TimeoutError: It was not so within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {timeout_s:.0f} s still waiting for {what}")
        time.sleep(period_s)


def is_taken(write: Callable[[], object], *early: int) -> bool:
    """Whether a write is taken by now; "failed calling webhook" (500) says: not yet.

    Args:
        write: the write.
        early: status codes besides 500 that pass with time.

    Raises:
        ApiError: any other refusal.
    """
    try:
        write()
    except ApiError as error:
        if error.status in {http.HTTPStatus.INTERNAL_SERVER_ERROR, *early}:
            return False
        raise
    return True


def is_listening(host: str, port: int) -> bool:
    """Whether somebody accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def _decode(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content.decode(errors="replace")
