"""A thin asynchronous client of the Kubernetes API: five verbs over plain dictionaries.

Authentication, TLS and connection pooling are those of ``kubernetes.aio``; its
generated models are left aside, because the operator works on the JSON itself.
"""

import contextlib
import math
import time
import urllib.parse
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from tpujob_operator.core.kinds import Kind, Ref, kind_of
from tpujob_operator.core.manifests.names import FIELD_MANAGER
from tpujob_operator.shell.fence import Fence, FencedRest, sending
from tpujob_operator.shell.jsontext import decoded
from tpujob_operator.shell.limiter import OUTAGE_CODES, Limiter

#: Seconds after which a request has failed; lists may be long.
REQUEST_TIMEOUT_S = 15.0
LIST_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 5.0
#: An answer is held as text and as objects, and an object may have a megabyte.
_LIST_CHUNK = 100
#: A server in trouble asks for a second or two, as a rule; a day must be a mistake.
_LONGEST_RETRY_AFTER_S = 60.0
_MOST_OF_ERROR = 65_536

Observer = Callable[[str, str, int, float], None]


class ApiError(Exception):
    """The API server refused a request, or could not be reached (``code`` 0)."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        about: str = "",
        reason: str = "",
        retry_after_s: float = 0,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.about = about  # kind of the object the server names, if it names one
        self.reason = reason  # a word for programs, if the server says one
        self.retry_after_s = retry_after_s

    @property
    def is_not_found(self) -> bool:
        """Whether the object, or its kind, does not exist."""
        return self.code == 404

    @property
    def is_conflict(self) -> bool:
        """Whether a precondition failed: the object is another, or newer, one."""
        return self.code == 409

    @property
    def is_namesake(self) -> bool:
        """Whether an object of this name is there already."""
        return self.code == 409 and self.reason == "AlreadyExists"

    @property
    def is_refused(self) -> bool:
        """Whether asking again will not help until somebody changes something."""
        return self.code in (400, 403, 405, 413, 422)

    @property
    def is_outage(self) -> bool:
        """Whether the API server as a whole is away or overloaded: no fault of this request."""
        return self.code in OUTAGE_CODES


def is_in_cluster(environ: Mapping[str, str]) -> bool:
    """Whether this process runs in a pod; an explicit KUBECONFIG says otherwise."""
    return bool(environ.get("KUBERNETES_SERVICE_HOST")) and not environ.get("KUBECONFIG")


async def load_configuration(*, in_cluster: bool) -> Configuration:
    """Credentials of the pod's service account, or those that KUBECONFIG names."""
    configuration = Configuration()
    configuration.connection_pool_maxsize = 0  # each watch and each long poll holds one
    loaders: Any = config  # has no types
    if in_cluster:
        loaders.load_incluster_config(client_configuration=configuration)
    else:
        await loaders.load_kube_config(client_configuration=configuration)
    return configuration


class Client:
    """The verbs the operator uses. Close it, or use it as a context manager.

    Without a limiter, requests are sent at once; without a fence, writes are always allowed.
    """

    def __init__(
        self,
        configuration: Configuration,
        observe: Observer | None = None,
        *,
        limiter: Limiter | None = None,
        fence: Fence = lambda: math.inf,
    ) -> None:
        self._observe = observe
        self._limiter = limiter
        self._fence = fence
        self._api: Any = ApiClient(configuration)  # has no types
        self._api.rest_client = FencedRest(configuration, fence)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    @property
    def address(self) -> str:
        """Where the API server is."""
        return str(self._api.configuration.host)

    @property
    def connection_options(self) -> dict[str, Any]:
        """What a request beside this client's needs: a proxy, and the server's name in TLS."""
        configuration = self._api.configuration
        options = {
            "proxy": configuration.proxy,
            "proxy_headers": configuration.proxy_headers,
            "server_hostname": configuration.tls_server_name,
        }
        return {name: value for name, value in options.items() if value}

    def make_connector(self) -> aiohttp.TCPConnector:
        """Connections to the API server beside those of this client, as many as are asked for."""
        return aiohttp.TCPConnector(limit=0, ssl=self._api.rest_client.ssl_context)

    async def credentials(self) -> dict[str, str]:
        """Headers that say who this client is."""
        headers: dict[str, str] = {}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], "", "GET", None)
        return headers

    async def get(self, kind: Kind, namespace: str | None, name: str) -> dict[str, Any] | None:
        """An object, or nothing if it does not exist."""
        try:
            return await self.request("get", kind.path(namespace, name), plural=kind.plural)
        except ApiError as error:
            if error.is_not_found:
                return None
            raise

    async def pages(
        self, kind: Kind, namespace: str | None = None, selector: str = ""
    ) -> AsyncGenerator[tuple[list[dict[str, Any]], int]]:
        """Read all objects that match a label selector, in chunks, each with the list's version.

        Raises:
            ApiError: as for ``request``; 410: the next chunk came too late.
        """
        query = {"limit": str(_LIST_CHUNK), "labelSelector": selector}
        while True:
            page = await self.request("list", kind.path(namespace), query=query, plural=kind.plural)
            # Items of a list carry neither kind nor version.
            head = {"apiVersion": kind.api_version, "kind": kind.kind}
            version = int(page["metadata"]["resourceVersion"])
            yield [{**head, **item} for item in page["items"]], version
            token = page["metadata"].get("continue")
            if not token:
                return
            query = {**query, "continue": token}

    async def list(
        self, kind: Kind, namespace: str | None = None, selector: str = ""
    ) -> tuple[list[dict[str, Any]], int]:
        """Read all objects that match a label selector, and the list's version."""
        pages = [page async for page in self.pages(kind, namespace, selector)]
        return [obj for page, _ in pages for obj in page], pages[-1][1]

    async def create(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object; an existing namesake is a conflict."""
        kind = kind_of(manifest)
        path = kind.path(manifest["metadata"]["namespace"])
        query = {"fieldManager": FIELD_MANAGER}
        return await self.request("create", path, query=query, body=manifest, plural=kind.plural)

    async def patch(
        self, ref: Ref, body: Mapping[str, Any], subresource: str = "", *, version: str = ""
    ) -> dict[str, Any]:
        """Merge ``body`` into an object, provided that it still is the one with this UID.

        ``version``: and that it still has this resource version; anything else is a conflict.
        """
        metadata = {**body.get("metadata", {}), "uid": ref.uid}
        if version:
            metadata["resourceVersion"] = version
        return await self.request(
            "patch",
            ref.kind.path(ref.namespace, ref.name, subresource),
            query={"fieldManager": FIELD_MANAGER},
            body={**body, "metadata": metadata},
            content_type="application/merge-patch+json",
            plural=ref.kind.plural,
        )

    async def delete(
        self, ref: Ref, propagation: str = "Background", *, by_force: bool = False
    ) -> None:
        """Delete an object, provided that it still is the one with this UID.

        ``by_force``: a pod goes at once, whatever its kubelet says.
        """
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": propagation,
            "preconditions": {"uid": ref.uid},
            **({"gracePeriodSeconds": 0} if by_force else {}),
        }
        path = ref.kind.path(ref.namespace, ref.name)
        await self.request("delete", path, body=body, plural=ref.kind.plural)

    async def is_served(self, kind: Kind) -> bool:
        """Whether the API server knows a kind: its custom resource definition is installed."""
        try:
            served = await self.request("get", "/" + kind.group_path, plural="discovery")
        except ApiError as error:
            if error.is_not_found:
                return False
            raise
        return any(item["name"] == kind.plural for item in served.get("resources", ()))

    async def request(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        plural: str = "",
        timeout_s: float = 0,
    ) -> dict[str, Any]:
        """Send one request and return the decoded answer.

        Raises:
            ApiError: the answer is no success, or there was none, or the fence let nothing pass.
        """
        if self._limiter is not None:
            await self._limiter.wait()
        timeout_s = timeout_s or (LIST_TIMEOUT_S if verb == "list" else REQUEST_TIMEOUT_S)
        is_write = _METHODS[verb] != "GET"
        if is_write:
            timeout_s = min(timeout_s, self._fence())
        started = time.monotonic()
        try:
            with sending(is_write=is_write):
                code, answer_headers, text = await self._send(
                    _METHODS[verb],
                    path + _query_string(query),
                    body,
                    {"Accept": "application/json", "Content-Type": content_type, **(headers or {})},
                    timeout_s,
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._took(verb, plural, 0, 0, started)
            raise ApiError(0, f"the API server does not answer: {error!r}") from error
        retry_after_s = _retry_after_s(answer_headers)
        self._took(verb, plural, code, retry_after_s, started)
        if code >= 400:
            raise _error(code, text, retry_after_s)
        return _decoded(text)

    def _took(
        self, verb: str, plural: str, code: int, retry_after_s: float, started: float
    ) -> None:
        now = time.monotonic()
        if self._limiter is not None:
            self._limiter.answered(code, retry_after_s, started, now)
        if self._observe is not None:
            self._observe(verb, plural, code, now - started)

    @contextlib.asynccontextmanager
    async def open(
        self, path: str, *, query: Mapping[str, str], plural: str, stall_s: float
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Open a long answer, such as a watch, that breaks after so many seconds of silence.

        Raises:
            ApiError: it was refused.
            aiohttp.ClientError, OSError, TimeoutError: there is no answer, or it broke.
        """
        if self._limiter is not None:
            await self._limiter.wait()
        started, code, retry_after_s = time.monotonic(), 0, 0.0
        headers = {"Accept": "application/json"}
        timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_TIMEOUT_S, sock_read=stall_s)
        target = path + _query_string(query)
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], target, "GET", None)
        try:
            answer = await self._api.rest_client.request(
                "GET",
                self._api.configuration.host + target,
                headers=headers,
                _request_timeout=timeout,
            )
            code, retry_after_s = answer.status, _retry_after_s(answer.headers)
        finally:
            self._took("watch", plural, code, retry_after_s, started)
        async with answer.response as response:
            if code >= 400:
                raise _error(code, await response.content.read(_MOST_OF_ERROR), retry_after_s)
            yield response.content

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        headers: dict[str, str],
        timeout_s: float,
    ) -> tuple[int, Mapping[str, str], bytes]:
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        response = await self._api.rest_client.request(
            method,
            self._api.configuration.host + path,
            headers=headers,
            body=body,
            _request_timeout=aiohttp.ClientTimeout(
                total=timeout_s, sock_connect=_CONNECT_TIMEOUT_S
            ),
        )
        return response.status, response.headers, await response.read()


_METHODS = {
    "get": "GET",
    "list": "GET",
    "create": "POST",
    "patch": "PATCH",
    "update": "PUT",
    "delete": "DELETE",
}


def _query_string(query: Mapping[str, str] | None) -> str:
    given = {name: value for name, value in (query or {}).items() if value}
    return "?" + urllib.parse.urlencode(given) if given else ""


def _decoded(text: bytes) -> dict[str, Any]:
    answer = decoded(text)
    return answer if isinstance(answer, dict) else {"items": answer}


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """Seconds that the server asks to wait; 0: it does not ask, or not in seconds."""
    text = headers.get("Retry-After", "")
    asked_s = float(text) if text.isascii() and text.isdigit() else 0.0
    return min(asked_s, _LONGEST_RETRY_AFTER_S)


def _error(code: int, text: bytes, retry_after_s: float) -> ApiError:
    try:
        status = _decoded(text)
    except ValueError:
        message = text[:500].decode(errors="replace").strip()
        return ApiError(code, message or f"HTTP {code}", retry_after_s=retry_after_s)
    about = str((status.get("details") or {}).get("kind", ""))
    message = str(status.get("message", code))
    reason = str(status.get("reason", ""))
    return ApiError(code, message, about=about, reason=reason, retry_after_s=retry_after_s)
