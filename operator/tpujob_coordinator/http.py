"""The coordinator's HTTP side: what it tells (timeline, state, metrics …), and is told."""

from __future__ import annotations

import json
import math
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from tpujob_agent import protocol
from tpujob_agent.notices import Notice
from tpujob_coordinator.metrics import CoreCollector
from tpujob_coordinator.shell import Shell
from tpujob_coordinator.state import state_of
from tpujob_coordinator.timeline import ANSWER_BYTES
from tpujob_coordinator.verdicts import is_same_secret

#: Longest wait of one timeline request; proxies cut idle requests after about a minute.
LONGEST_WAIT_S = 50.0
_NUMBER_END = 1 << 53
_OPEN_PATHS = frozenset({protocol.METRICS_PATH, protocol.HEALTH_PATH})


def make_app(shell: Shell, token: str) -> web.Application:
    """The web application."""
    registry = CollectorRegistry()
    registry.register(CoreCollector(shell.core))

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
        shell.tell(*_told(await request.text()))
        return web.json_response({"epoch": shell.core.timeline.epoch})

    async def state(_: web.Request) -> web.Response:
        return web.json_response(state_of(shell.core))

    async def losses(request: web.Request) -> web.Response:
        after = int(_number(request, "after", 0))
        return web.json_response({"losses": shell.core.losses.after(after)})

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    app = web.Application(middlewares=[_guard(token)])
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


def _told(text: str) -> tuple[list[Notice], dict[str, int], list[int]]:
    try:
        told = json.loads(text)
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


def _guard(token: str) -> Any:
    @web.middleware
    async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
        given = request.headers.get(protocol.TOKEN_HEADER, "")
        if request.path not in _OPEN_PATHS and not is_same_secret(given, token):
            raise web.HTTPUnauthorized(text=f"the header {protocol.TOKEN_HEADER} is wrong\n")
        response: web.StreamResponse = await handler(request)
        return response

    return guard
