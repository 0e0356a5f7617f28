"""A proxy in front of the API server for one operator, as a test uses it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
import ssl
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
from aiohttp import web

from tests.eventloops import connections_ended
from tests.faultproxy.faults import (
    Action,
    EventFault,
    EventMatch,
    EventRule,
    Fault,
    Match,
    RandomRule,
    Rule,
)
from tests.faultproxy.journal import Journal
from tests.faultproxy.names import Names
from tests.faultproxy.server import Server
from tests.waiting import PATIENCE_S

_T = TypeVar("_T")
_LARGEST_BODY = 16 * 2**20


class FaultProxy:
    """Plain HTTP on loopback in front, the API server behind; faults come by rules and by methods.

    Use it as a context manager, and give the operator its ``kubeconfig``. All
    methods may be called from any thread.
    """

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        """Prepare a proxy for the API server of a kubeconfig; own files go into ``folder``."""
        self._given: dict[str, Any] = json.loads(kubeconfig.read_text())
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._stack = contextlib.AsyncExitStack()
        self._server: Server
        self.port = 0
        self.journal = Journal(Names())

    @property
    def kubeconfig(self) -> Path:
        """For the operator: the same user, at the proxy's address."""
        return self._folder / f"kubeconfig-{self.port}"

    def __enter__(self) -> Self:
        """Start to serve."""
        self._thread.start()
        self._wait(self._start())
        address = {"server": f"http://127.0.0.1:{self.port}"}
        clusters = [{**item, "cluster": address} for item in self._given["clusters"]]
        self.kubeconfig.write_text(json.dumps({**self._given, "clusters": clusters}))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cut every connection."""
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    # ---- faults by rule

    def on(self, match: Match, fault: Fault, *, nth: int = 1, times: int | None = 1) -> Rule:
        """A fault for the n-th request that matches; ``times`` None: and for all after it."""
        rule = Rule(match, fault, nth=nth, times=times)
        self._server.rules.append(rule)
        return rule

    def on_event(self, match: EventMatch, fault: EventFault, *, nth: int = 1) -> EventRule:
        """A fault for the n-th watch event that matches."""
        rule = EventRule(match, fault, nth=nth)
        self._server.event_rules.append(rule)
        return rule

    def at_random(self, rule: RandomRule) -> None:
        """Faults by chance, until ``heal``."""
        self._server.rules.append(rule)

    def heal(self) -> None:
        """End all faults; what was lost stays lost."""
        self._server.rules.clear()
        self._server.event_rules.clear()
        self.reconnect()
        self.thaw()
        self.coalesce(0)

    # ---- faults of the moment

    def freeze(self, *, lists_too: bool = False) -> None:
        """Hold all watch events back; ``lists_too``: and answer lists as they are now."""
        self._wait(self._server.freeze(lists_too=lists_too))

    def freezing(self, *, lists_too: bool = False) -> Action:
        """``freeze`` for a ``Strike``."""
        return functools.partial(self._server.freeze, lists_too=lists_too)

    def thaw(self) -> None:
        """Undo ``freeze``: deliver what was held back."""
        self._call(self._server.release_lists)
        self._call(self._server.weather.thawed.set)

    def coalesce(self, seconds: float) -> None:
        """Gather watch events for so long, and deliver the last of each object; 0: no more."""
        self._server.weather.coalesce_s = seconds

    def close_watches(self, *, is_expired: bool = False) -> None:
        """End all watches; ``is_expired``: the next ones are answered with 410."""
        self._call(functools.partial(self._server.close_watches, is_expired=is_expired))

    def cut_off(self) -> None:
        """Answer nothing at all, and end all watches, until ``reconnect``."""
        self._call(self._server.connected.clear)
        self.close_watches()

    def reconnect(self) -> None:
        """Undo ``cut_off``; connections of requests made meanwhile end."""
        self._call(self._server.connected.set)

    # ---- the thread behind it

    async def _start(self) -> None:
        address = self._given["clusters"][0]["cluster"]
        authority = base64.b64decode(address["certificate-authority-data"]).decode()
        tls = ssl.create_default_context(cadata=authority)
        # The operator's own limits are to be seen, not those of a pool of connections.
        session = aiohttp.ClientSession(
            base_url=address["server"], connector=aiohttp.TCPConnector(ssl=tls, limit=0)
        )
        await self._stack.enter_async_context(session)
        self._server = Server(session, self.journal)
        app = web.Application(client_max_size=_LARGEST_BODY)
        app.router.add_route("*", "/{path:.*}", self._server.serve)
        # A handler whose client is gone has nobody to wait for.
        self._stack.push_async_callback(self._server.finish)
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = int(runner.addresses[0][1])

    async def _close(self) -> None:
        await self._stack.aclose()
        await connections_ended()

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def _call(self, work: Callable[[], object]) -> None:
        done: Future[None] = Future()

        def run() -> None:
            work()
            done.set_result(None)

        self._loop.call_soon_threadsafe(run)
        done.result(PATIENCE_S)
