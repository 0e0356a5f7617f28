"""The proxy itself, in one event loop: every request goes through a rule or straight on."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
from collections.abc import Mapping

import aiohttp
from aiohttp import web

from tests.faultproxy.calls import Call, Object
from tests.faultproxy.faults import (
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
    409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError",
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
        if isinstance(fault, Cut | Refuse) or (isinstance(fault, Strike) and not fault.is_after):
            return _unserved(request, fault)
        await _pause(fault)
        if call.verb == "watch":
            return await self._watch(request, call)
        answer = await asyncio.shield(self._send(request, call, body))
        match fault:
            case LoseAnswer(code):
                return _refusal(code) if code else _cut(request)
            case Strike(action):
                action()
        return _response(answer)

    def _judge(self, call: Call) -> Fault | None:
        found = (rule.judge(call, self.journal.names) for rule in list(self.rules))
        return next((fault for fault in found if fault is not None), None)

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
            return _refusal(410)
        async with self._upstream.get(
            request.path_qs, headers=_headers(request), timeout=aiohttp.ClientTimeout()
        ) as upstream:
            if upstream.status != 200:
                return web.Response(status=upstream.status, body=await upstream.read())
            down = web.StreamResponse(headers={"Content-Type": "application/json"})
            await down.prepare(request)
            relay = Relay(self.weather, functools.partial(self._judge_event, call.resource))
            self._relays[relay] = call.resource
            try:
                with contextlib.suppress(ConnectionError):
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
    if isinstance(fault, Strike):
        fault.action()
    return _cut(request)


async def _pause(fault: Fault | None) -> None:
    match fault:
        case BlackHole():
            await asyncio.Event().wait()
        case Delay(seconds):
            await asyncio.sleep(seconds)


def _headers(request: web.Request) -> dict[str, str]:
    return _passed(request.headers)


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    left_out = {*_HOP_HEADERS, "content-encoding"}
    return {name: value for name, value in headers.items() if name.lower() not in left_out}


def _response(answer: Answer) -> web.Response:
    return web.Response(status=answer.code, headers=answer.headers, body=answer.content)


def _refusal(code: int, retry_after_s: int | None = None) -> web.Response:
    reason = _REASONS.get(code, "Unknown")
    status = {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": f"the fault proxy says {code}", "reason": reason, "code": code,
    }  # fmt: skip
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return web.json_response(status, status=code, headers=headers)


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
