"""The coordinator's HTTP side: what it tells (timeline, state, metrics …), and is told."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from tpujob_agent import protocol
from tpujob_agent.notices import Notice
from tpujob_agent.signing import SIGNATURE_HEADER, Verifier, is_of_body
from tpujob_coordinator.lobby import oldest_of_busiest
from tpujob_coordinator.metrics import CoreCollector
from tpujob_coordinator.shell import Shell
from tpujob_coordinator.state import state_of
from tpujob_coordinator.timeline import ANSWER_BYTES

#: Longest wait of one timeline request; proxies cut idle requests after about a minute.
LONGEST_WAIT_S = 50.0
_NUMBER_END = 1 << 53
#: Connections that have sent no signed request: Prometheus, probes, and whoever else comes.
MOST_STRANGERS = 64
_METRICS_S = 1.0
_PIECE_BYTES = 8_192
_OPEN_PATHS = frozenset({protocol.METRICS_PATH, protocol.HEALTH_PATH})


class Visitors:
    """HTTP connections, of which those that have not sent a signed request are few."""

    def __init__(self) -> None:
        self._known: set[web.RequestHandler] = set()

    def know(self, request: web.Request) -> None:
        """A signed request has come on its connection."""
        self._known.add(request.protocol)

    def received_by(self, server: web.Server) -> Callable[[], asyncio.Protocol]:
        """What makes a connection's protocol: ``server``, once there is a seat."""

        def receive() -> asyncio.Protocol:
            connections = server.connections
            self._known.intersection_update(connections)
            strangers = [one for one in connections if one not in self._known and _is_open(one)]
            if len(strangers) >= MOST_STRANGERS:
                _turn_away(oldest_of_busiest(strangers, _address))
            return Door(server())

        return receive


class Door(asyncio.Protocol):
    """Passes a connection on to its handler in small pieces.

    A request that cannot be parsed leaves the piece in a traceback, which lives until the next
    collection of garbage.
    """

    def __init__(self, handler: web.RequestHandler) -> None:
        self._handler = handler
        self.eof_received = handler.eof_received  # type: ignore[method-assign] # passed on as they are
        self.pause_writing = handler.pause_writing  # type: ignore[method-assign]
        self.resume_writing = handler.resume_writing  # type: ignore[method-assign]
        self.data_received = handler.data_received  # type: ignore[method-assign]
        self.connection_lost = handler.connection_lost  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Have it read little at a time."""
        transport.max_size = _PIECE_BYTES  # type: ignore[attr-defined] # of selector transports
        self._handler.connection_made(transport)


def _is_open(handler: web.RequestHandler) -> bool:
    return handler.transport is not None and not handler.transport.is_closing()


def _turn_away(handler: web.RequestHandler) -> None:
    if handler.transport is not None:
        handler.transport.abort()  # ending the request takes until its task has run


def _address(handler: web.RequestHandler) -> str:
    name = handler.transport and handler.transport.get_extra_info("peername")
    return str(name[0]) if name else ""


class Metrics:
    """The page for Prometheus, made at most once a second: anybody may ask for it."""

    def __init__(self, shell: Shell) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(CoreCollector(shell.core))
        self._page, self._made_s = b"", -math.inf

    def page(self) -> bytes:
        """The newest page."""
        if time.monotonic() - self._made_s >= _METRICS_S:
            self._page, self._made_s = generate_latest(self._registry), time.monotonic()
        return self._page


def make_app(shell: Shell, token: str, visitors: Visitors) -> web.Application:
    """The web application."""
    page = Metrics(shell)

    async def timeline(request: web.Request) -> web.Response:
        epoch = request.query.get("epoch", "")
        after = _number(request, "after", 0)
        wait_s = min(LONGEST_WAIT_S, max(0.0, _number(request, "wait_s", 0)))
        most_bytes = int(min(ANSWER_BYTES, max(1.0, _number(request, "bytes", ANSWER_BYTES))))
        events = await shell.events_after(epoch, int(after), wait_s, most_bytes)
        body = {
            "epoch": shell.core.timeline.epoch,
            "events": [event.to_json() for event in events],
            "last": shell.core.timeline.last,
            "nowMs": _watermark(shell, events),
        }
        return web.json_response(body)

    async def tell(request: web.Request) -> web.Response:
        shell.tell(*_told(await request.json()))
        return web.json_response({"epoch": shell.core.timeline.epoch})

    async def state(_: web.Request) -> web.Response:
        return web.json_response(state_of(shell.core))

    async def losses(request: web.Request) -> web.Response:
        after = int(_number(request, "after", 0))
        return web.json_response({"losses": shell.core.losses.after(after)})

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=page.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    app = web.Application(middlewares=[_guard(token, visitors)])
    app.router.add_get(protocol.TIMELINE_PATH, timeline)
    app.router.add_put(protocol.TELL_PATH, tell)
    app.router.add_get(protocol.STATE_PATH, state)
    app.router.add_get(protocol.LOSSES_PATH, losses)
    app.router.add_get(protocol.METRICS_PATH, metrics)
    app.router.add_get(protocol.HEALTH_PATH, health)
    return app


def _watermark(shell: Shell, events: list[protocol.Event]) -> int:
    """A time before which the reader of these events knows everything."""
    if events and events[-1].seq < shell.core.timeline.last:
        return events[-1].at_ms
    # Later events carry a later time or this one, as the clock never goes back.
    return max(shell.clock.now_ms(), shell.core.timeline.last_at_ms)


def _told(told: Any) -> tuple[list[Notice], dict[str, int], list[int]]:
    try:
        notices = [Notice.from_json(item) for item in told["notices"]]
        known = {budget.value for budget in protocol.Budget}  # a newer operator may have more
        budgets = {str(k): int(n) for k, n in told["budgets"].items() if k in known}
        return notices, budgets, [int(at_ms) for at_ms in told.get("takenAway", [])]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise web.HTTPBadRequest(text=f"neither notices nor budgets: {error}\n") from error


def _number(request: web.Request, name: str, default: float) -> float:
    try:
        number = float(request.query.get(name, default))
    except ValueError:
        number = math.nan
    if not abs(number) < _NUMBER_END:
        raise web.HTTPBadRequest(text=f"{name} must be a number\n")
    return number


def _guard(token: str, visitors: Visitors) -> Any:
    verifier = Verifier(token)

    @web.middleware
    async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path not in _OPEN_PATHS:
            _check(request, verifier)
            visitors.know(request)
            await _check_body(request)
        response: web.StreamResponse = await handler(request)
        return response

    return guard


def _check(request: web.Request, verifier: Verifier) -> None:
    given = request.headers.get(SIGNATURE_HEADER, "")
    now_ms = time.time_ns() // 1_000_000
    problem = verifier.problem(given, request.method, request.path, request.query, now_ms)
    if problem:
        raise web.HTTPUnauthorized(text=f"{problem}\n")


async def _check_body(request: web.Request) -> None:
    """Nothing of the body has been read before the signature was found good."""
    try:
        body = await request.json() if request.can_read_body else None
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"the body is no JSON: {error}\n") from error
    if not is_of_body(request.headers[SIGNATURE_HEADER], body):
        raise web.HTTPUnauthorized(text="the body is not the one that was signed\n")
