"""Reads the timelines of the coordinators: one long poll per running job."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import aiohttp

from tpujob_agent.protocol import (
    HTTP_PORT,
    TELL_PATH,
    TIMELINE_PATH,
    TOKEN_HEADER,
    Event,
    EventKind,
    ProtocolError,
)
from tpujob_operator.core.kinds import SERVICE, Ref
from tpujob_operator.core.manifests import names, secret
from tpujob_operator.core.snapshot import JobKey, Reading, Told
from tpujob_operator.shell.client import ApiError, Client
from tpujob_operator.shell.clock import now_ms
from tpujob_operator.shell.jobstate import JobState

_log = logging.getLogger(__name__)
WAIT_S = 20.0
_TELL_TIMEOUT_S = 5.0
_FIRST_RETRY_S = 0.2
_LONGEST_RETRY_S = 3.0
#: Events that come within this time are read together.
_GATHER_S = 0.2
_GATHER_PER_JOB_S = 0.002
#: The end of a job is acknowledged only once it is written down, or after this time.
_PERSIST_TIMEOUT_S = 30.0
_ENDS = (EventKind.FINISHED, EventKind.GAVE_UP)


class UnreachableError(Exception):
    """The coordinator does not answer (yet)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A request to a coordinator."""

    path: str
    token: str
    timeout_s: float
    query: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: Mapping[str, Any] | None = None  # PUT it; None: GET


class Transport(Protocol):
    """How a coordinator's HTTP interface is reached."""

    async def send(self, key: JobKey, call: Call) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            UnreachableError: no answer, or no sensible one.
        """


#: Address of a coordinator inside the cluster.
SERVICE_ADDRESS = f"http://{{service}}.{{namespace}}.svc:{HTTP_PORT}"


class DirectTransport:
    """Straight to an address, by default that of the Service inside the cluster."""

    def __init__(self, address: str = SERVICE_ADDRESS) -> None:
        self._address = address
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def send(self, key: JobKey, call: Call) -> dict[str, Any]:
        """The coordinator's answer."""
        service = names.coordinator_service(key.name)
        base = self._address.format(service=service, namespace=key.namespace)
        timeout = aiohttp.ClientTimeout(total=call.timeout_s, sock_connect=3)
        try:
            async with self._session.request(
                "GET" if call.body is None else "PUT",
                base + call.path,
                params=call.query,
                json=call.body,
                headers={TOKEN_HEADER: call.token},
                timeout=timeout,
            ) as response:
                response.raise_for_status()
                answer: dict[str, Any] = await response.json()
                return answer
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise UnreachableError(repr(error)) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


class ProxyTransport:
    """Through the API server's proxy: for an operator outside the cluster."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def send(self, key: JobKey, call: Call) -> dict[str, Any]:
        """The coordinator's answer."""
        service = urllib.parse.quote(f"{names.coordinator_service(key.name)}:http")
        base = SERVICE.path(key.namespace, service, "proxy")
        try:
            return await self._client.request(
                "get" if call.body is None else "update",
                base + call.path,
                query=call.query,
                body=call.body,
                headers={TOKEN_HEADER: call.token},
                plural="services/proxy",
                timeout_s=call.timeout_s,
            )
        except (ApiError, ValueError) as error:
            raise UnreachableError(str(error)) from error

    async def close(self) -> None:
        """Nothing: the client belongs to somebody else."""


@dataclasses.dataclass(slots=True)
class _Reader:
    uid: str
    task: asyncio.Task[None]
    passed: asyncio.Event


class CoordinatorReaders:
    """Keeps one reader for each job that has a coordinator."""

    def __init__(
        self,
        transport: Transport,
        operator_key: str,
        find: Callable[[JobKey], JobState | None],
        wake: Callable[[JobKey], None],
    ) -> None:
        self._transport = transport
        self._operator_key = operator_key
        self._find = find
        self._wake = wake
        self._readers: dict[JobKey, _Reader] = {}

    def __len__(self) -> int:
        return len(self._readers)

    def follow(self, key: JobKey, uid: str, *, is_wanted: bool) -> None:
        """Read a job's coordinator, or stop reading it; also tells that a pass is over."""
        reader = self._readers.get(key)
        if reader is not None and reader.uid == uid:
            reader.passed.set()
        if reader is not None and (reader.uid != uid or not is_wanted):
            self._stop(key)
            reader = None
        if is_wanted and reader is None:
            passed = asyncio.Event()
            task = asyncio.create_task(self._read(key, uid, passed), name=f"timeline of {key}")
            self._readers[key] = _Reader(uid, task, passed)

    async def tell(self, ref: Ref, told: Told) -> None:
        """Tell a job's coordinator of hosts that leave or have left, and of its budgets.

        Raises:
            UnreachableError: it has not heard, or is too old to listen.
        """
        token = secret.token(self._operator_key, ref.uid)
        body = {
            "notices": [notice.to_json() for notice in told.notices],
            "budgets": told.budgets,
            "takenAway": told.taken_away,
        }
        call = Call(TELL_PATH, token, _TELL_TIMEOUT_S, body=body)
        await self._transport.send(JobKey(ref.namespace, ref.name), call)

    def forget(self, key: JobKey) -> None:
        """Stop reading a job that is gone."""
        self._stop(key)

    async def close(self) -> None:
        """Stop all readers."""
        tasks = [reader.task for reader in self._readers.values()]
        for key in list(self._readers):
            self._stop(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stop(self, key: JobKey) -> None:
        reader = self._readers.pop(key, None)
        if reader is not None:
            reader.task.cancel()
        state = self._find(key)
        if state is not None:
            state.silent_since_ms = 0

    async def _read(self, key: JobKey, uid: str, passed: asyncio.Event) -> None:
        retry_s = _FIRST_RETRY_S
        while (state := self._find(key)) is not None and state.uid == uid:
            try:
                reading = await self._fetch(key, state, WAIT_S)
            except (UnreachableError, ProtocolError) as error:
                _log.debug("coordinator of %s: %s", key, error)
                self._note_silence(key, state)
                await asyncio.sleep(retry_s)
                retry_s = min(_LONGEST_RETRY_S, retry_s * 2)
                continue
            retry_s = _FIRST_RETRY_S
            was_silent = state.silent_since_ms > 0
            if state.take(reading) or was_silent:
                self._wake(key)
            if any(event.kind in _ENDS for event in reading.events):
                await self._acknowledge(key, state, passed)
            await asyncio.sleep(max(_GATHER_S, _GATHER_PER_JOB_S * len(self._readers)))

    def _note_silence(self, key: JobKey, state: JobState) -> None:
        if not state.silent_since_ms:
            state.silent_since_ms = now_ms()
            self._wake(key)

    async def _acknowledge(self, key: JobKey, state: JobState, passed: asyncio.Event) -> None:
        """Let the coordinator go, once its last words are written down."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PERSIST_TIMEOUT_S):
                while state.persisted != state.read:
                    passed.clear()
                    await passed.wait()
        with contextlib.suppress(UnreachableError, ProtocolError):
            await self._fetch(key, state, 0)

    async def _fetch(self, key: JobKey, state: JobState, wait_s: float) -> Reading:
        query = {
            "epoch": state.read.epoch,
            "after": str(state.read.seq),
            "wait_s": f"{wait_s:g}",
        }
        token = secret.token(self._operator_key, state.uid)
        answer = await self._transport.send(
            key, Call(TIMELINE_PATH, token, wait_s + 10, query=query)
        )
        try:
            return Reading(
                epoch=str(answer["epoch"]),
                events=tuple(Event.from_json(item) for item in answer["events"]),
                now_ms=int(answer["nowMs"]),
            )
        except (KeyError, TypeError) as error:
            raise ProtocolError(f"not a timeline: {error!r}") from error
