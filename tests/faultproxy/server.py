"""The proxy itself, in one event loop: every request goes through a rule or straight on."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import inspect
import json
from collections.abc import Mapping

import aiohttp
from aiohttp import web

from tests.faultproxy.calls import Call, Object
from tests.faultproxy.faults import (
    Action,
    BlackHole,
    Cut,
    Delay,
    EventFault,
    EventRule,
    Fault,
    LoseAnswer,
    RandomRule,
    Refuse,
    Rule,
    Strike,
)
from tests.faultproxy.journal import Journal
from tests.faultproxy.watches import Relay, Weather

#: A watch that has expired is answered with 410 only after this time: what is missed is missed.
_EXPIRED_AFTER_S = 1.0
_HOP_HEADERS = frozenset(
    {"host", "connection", "keep-alive", "transfer-encoding", "content-length", "accept-encoding"}
)
_REASONS = {
    404: "NotFound", 409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError",
    503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What the API server has answered."""

    code: int
    headers: Mapping[str, str]
    content: bytes


class Server:
    """Serves one operator, and talks to one API server."""

    def __init__(self, upstream: aiohttp.ClientSession, journal: Journal) -> None:
        self._upstream = upstream
        self._relays: dict[Relay, str] = {}
        self._expired: set[str] = set()
        self._sending: set[asyncio.Task[Answer]] = set()
        self._held: dict[str, Answer] = {}
        self._lists: dict[str, dict[str, str]] = {}
        self.journal = journal
        self.weather = Weather(asyncio.Event())
        self.weather.thawed.set()
        self.rules: list[Rule | RandomRule] = []
        self.event_rules: list[EventRule] = []
        self.connected = asyncio.Event()
        self.connected.set()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one request of the operator."""
        body = await request.read()
        call = Call.of(request.method, request.path, request.query, _json(body))
        self.journal.add_call(call)
        if not self.connected.is_set():
            await self.connected.wait()
            return _cut(request)
        fault = self._judge(call)
        await _begin(fault)
        if isinstance(fault, Cut | Refuse) or (isinstance(fault, Strike) and fault.is_lost):
            return _unserved(request, fault)
        if call.verb == "watch":
            return await self._watch(request, call)
        # A client that is gone takes nothing back: the API server has its request.
        sending = asyncio.create_task(self._send(request, call, body))
        self._sending.add(sending)
        sending.add_done_callback(self._sent)
        try:
            answer = await asyncio.shield(sending)
        except aiohttp.ClientError:
            return _cut(request)
        if isinstance(fault, LoseAnswer):
            return _refusal(fault.code) if fault.code else _cut(request)
        if isinstance(fault, Strike):
            await _act(fault.after)
        return _response(answer)

    def _judge(self, call: Call) -> Fault | None:
        found = (rule.judge(call, self.journal.names) for rule in list(self.rules))
        return next((fault for fault in found if fault is not None), None)

    def _sent(self, sending: asyncio.Task[Answer]) -> None:
        self._sending.discard(sending)
        if not sending.cancelled():
            sending.exception()  # a connection that the API server has closed

    async def finish(self) -> None:
        """Wait for what the API server has been asked."""
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def _send(self, request: web.Request, call: Call, body: bytes) -> Answer:
        """Ask the API server, or for lists that are held back what it said then."""
        if call.verb == "list":
            if held := self._held.get(request.path_qs):
                return held
            self._lists[request.path_qs] = _headers(request)
        before = self.journal.newest
        answer = await self._ask(request.method, request.path_qs, _headers(request), body)
        self.journal.add_answer(call, before, answer.code, answer.content)
        return answer

    async def _ask(
        self, method: str, path_qs: str, headers: dict[str, str], body: bytes = b""
    ) -> Answer:
        async with self._upstream.request(
            method, path_qs, headers=headers, data=body or None
        ) as answer:
            return Answer(answer.status, _passed(answer.headers), await answer.read())

    # ---- watches

    async def _watch(self, request: web.Request, call: Call) -> web.StreamResponse:
        if call.resource in self._expired:
            await asyncio.sleep(_EXPIRED_AFTER_S)
            self._expired.discard(call.resource)
            return _expiry()
        async with self._upstream.get(
            request.path_qs, headers=_headers(request), timeout=aiohttp.ClientTimeout()
        ) as upstream:
            if upstream.status != 200:
                return web.Response(status=upstream.status, body=await upstream.read())
            down = web.StreamResponse(headers={"Content-Type": "application/json"})
            relay = Relay(self.weather, functools.partial(self._judge_event, call.resource))
            self._relays[relay] = call.resource
            try:
                with contextlib.suppress(ConnectionError):
                    await down.prepare(request)
                    await relay.run(upstream, down)
                    await down.write_eof()
            finally:
                del self._relays[relay]
        return down

    def _judge_event(self, resource: str, event: Object) -> EventFault | None:
        kind, obj = event["type"], event["object"]
        if kind in ("BOOKMARK", "ERROR"):
            return None
        name = self.journal.add_event(kind, resource, obj)
        for rule in list(self.event_rules):
            fault = rule.judge(kind, resource, name)
            if fault is EventFault.EXPIRE:
                self._expired.add(resource)
            if fault is not None:
                return fault
        return None

    # ---- what holds for all requests

    async def freeze(self, *, lists_too: bool) -> None:
        """Hold all watch events back, and answer lists as they are now."""
        self.weather.thawed.clear()
        if lists_too:
            await self.hold_lists()

    async def hold_lists(self) -> None:
        """From now on, answer every list that was asked for before as it is at this moment."""
        for path_qs, headers in list(self._lists.items()):
            self._held[path_qs] = await self._ask("GET", path_qs, headers)

    def release_lists(self) -> None:
        """Answer lists as they are."""
        self._held.clear()

    def close_watches(self, *, is_expired: bool = False) -> None:
        """End all watches; ``is_expired``: they cannot be continued where they were."""
        for relay, resource in self._relays.items():
            relay.close()
            if is_expired:
                self._expired.add(resource)


def _unserved(request: web.Request, fault: Cut | Refuse | Strike) -> web.Response:
    if isinstance(fault, Refuse):
        return _refusal(fault.code, fault.retry_after_s)
    return _cut(request)


async def _begin(fault: Fault | None) -> None:
    match fault:
        case BlackHole():
            await asyncio.Event().wait()
        case Delay(seconds):
            await asyncio.sleep(seconds)
        case Strike(before):
            await _act(before)


async def _act(action: Action | None) -> None:
    result = action() if action is not None else None
    if inspect.isawaitable(result):
        await result


def _headers(request: web.Request) -> dict[str, str]:
    return _passed(request.headers)


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    left_out = {*_HOP_HEADERS, "content-encoding"}
    return {name: value for name, value in headers.items() if name.lower() not in left_out}


def _response(answer: Answer) -> web.Response:
    return web.Response(status=answer.code, headers=answer.headers, body=answer.content)


def _status(code: int) -> Object:
    reason = _REASONS.get(code, "Unknown")
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": f"the fault proxy says {code}", "reason": reason, "code": code,
    }  # fmt: skip


def _refusal(code: int, retry_after_s: int | None = None) -> web.Response:
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return web.json_response(_status(code), status=code, headers=headers)


def _expiry() -> web.Response:
    """A watch of something too old, as an API server answers it: 200, and an event that ends it."""
    return web.json_response({"type": "ERROR", "object": _status(410)})


def _cut(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)  # goes nowhere


def _json(body: bytes) -> Object | None:
    try:
        found = json.loads(body) if body else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
