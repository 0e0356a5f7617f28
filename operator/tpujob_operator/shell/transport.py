"""HTTP with coordinators: their answers are what a job's own program may have made them."""

from __future__ import annotations

import dataclasses
import json
import urllib.parse
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Protocol

import aiohttp

from tpujob_agent import signing
from tpujob_agent.protocol import HTTP_PORT
from tpujob_operator.core.kinds import SERVICE
from tpujob_operator.core.snapshot import JobKey
from tpujob_operator.shell.client import Client
from tpujob_operator.shell.clock import wall_ms

#: Bytes of one answer; a thousand events of the usual kind are about half a megabyte.
ANSWER_BYTES = 4 * 1024 * 1024
#: Of all answers that are being received; small ones do not count.
_ALL_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = _SMALL_BYTES = 64 * 1024
_CONNECT_S = 3
#: Bytes of the reason of a 401 that are read.
_MOST_WORDS = 200


class UnreachableError(Exception):
    """The coordinator does not answer (yet), or its answer is of no use.

    ``code``: the HTTP status, if it is a coordinator's and no success.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code

    @property
    def is_unauthorized(self) -> bool:
        """Whether the coordinator does not take the operator's token."""
        return self.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class OutdatedCoordinatorError(UnreachableError):
    """The coordinator is older than what it was asked for: to ask again will not help."""


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A request to a coordinator."""

    service: str
    path: str
    token: str
    timeout_s: float
    query: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: Mapping[str, Any] | None = None  # PUT it; None: GET

    @property
    def headers(self) -> dict[str, str]:
        """The signature, for one sending of the request."""
        method = "GET" if self.body is None else "PUT"
        signature = signing.sign(
            self.token, method, self.path, wall_ms(), query=self.query, body=self.body
        )
        return {signing.SIGNATURE_HEADER: signature}


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A JSON object, and how many bytes it came in."""

    body: Mapping[str, Any]
    size: int


class Transport(Protocol):
    """How a coordinator's HTTP interface is reached."""

    async def send(self, key: JobKey, call: Call) -> Answer:
        """The answer to a request.

        Raises:
            UnreachableError: no answer, or no sensible one.
        """


class _Http:
    """Requests whose answers are bounded, and whose redirects are not followed.

    A job has one reader and is told one thing at a time, so that connections need no limit.
    """

    def __init__(self, connector: aiohttp.TCPConnector | None = None, **options: Any) -> None:
        self._session = aiohttp.ClientSession(
            connector=connector or aiohttp.TCPConnector(limit=0), auto_decompress=False
        )
        self._options = options
        self._received = 0  # bytes of answers that are not complete, beyond the small ones

    async def send(self, url: str, call: Call, headers: Mapping[str, str]) -> Answer:
        timeout = aiohttp.ClientTimeout(total=call.timeout_s, sock_connect=_CONNECT_S)
        try:
            async with self._session.request(
                "GET" if call.body is None else "PUT",
                url + call.path,
                params=call.query,
                json=call.body,
                headers={"Accept-Encoding": "identity", **call.headers, **headers},
                timeout=timeout,
                allow_redirects=False,
                **self._options,
            ) as response:
                if response.status != 200:
                    raise UnreachableError(await _problem_of(response), response.status)
                return _decoded(await self._body_of(response))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(repr(error)) from error

    async def _body_of(self, response: aiohttp.ClientResponse) -> bytes:
        body, counted = bytearray(), 0
        try:
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                body += chunk
                if len(body) > ANSWER_BYTES:
                    raise UnreachableError(f"its answer is longer than {ANSWER_BYTES} bytes")
                if len(body) > _SMALL_BYTES:
                    counted += len(chunk)
                    self._received += len(chunk)
                if counted and self._received > _ALL_BYTES:
                    raise UnreachableError("too many long answers are being received at once")
        finally:
            self._received -= counted
        return bytes(body)

    async def close(self) -> None:
        await self._session.close()


async def _problem_of(response: aiohttp.ClientResponse) -> str:
    """What it answers; a refused signature has a reason that helps."""
    if response.status != 401:
        return f"it answers HTTP {response.status}"
    words = await response.content.read(_MOST_WORDS)
    return f"it answers HTTP 401: {words.decode(errors='replace').strip()}"


def _decoded(body: bytes) -> Answer:
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UnreachableError(f"its answer is no JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise UnreachableError("its answer is no JSON object")
    return Answer(decoded, len(body))


#: Address of a coordinator inside the cluster.
SERVICE_ADDRESS = f"http://{{service}}.{{namespace}}.svc:{HTTP_PORT}"


class DirectTransport:
    """Straight to an address, by default that of the Service inside the cluster."""

    def __init__(self, address: str = SERVICE_ADDRESS) -> None:
        self._address = address
        self._http = _Http()

    async def send(self, key: JobKey, call: Call) -> Answer:
        """The coordinator's answer."""
        url = self._address.format(service=call.service, namespace=key.namespace)
        return await self._http.send(url, call, {})

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()


class ProxyTransport:
    """Through the API server's proxy: for an operator outside the cluster.

    The connections are not those of the client: a long poll holds one for each job.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._http = _Http(client.make_connector(), **client.connection_options)

    async def send(self, key: JobKey, call: Call) -> Answer:
        """The coordinator's answer."""
        service = urllib.parse.quote(f"{call.service}:http")
        url = self._client.address + SERVICE.path(key.namespace, service, "proxy")
        try:
            return await self._http.send(url, call, await self._client.credentials())
        except UnreachableError as error:  # the status may be the API server's
            raise UnreachableError(str(error)) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()
