"""The asyncio side of the coordinator: connections, clock, and who waits for events."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping

from tpujob_agent.notices import Notice
from tpujob_agent.protocol import Event, Hello, Message, Welcome
from tpujob_agent.wire import encode
from tpujob_coordinator.core import Core
from tpujob_coordinator.link import Link
from tpujob_coordinator.stages import Send, Stage
from tpujob_coordinator.timeline import KEPT_BYTES

TICK_S = 0.25
#: Complaints about connections that are written to the log in a minute.
_COMPLAINTS = 20
_MINUTE_MS = 60_000
#: Of the time that passes, what a wrong clock is corrected by: less than the fence's margin.
_SLEW = 200
#: At the end of the job, how long its agents may take to hear of it.
_FINISH_S = 5.0


class Clock:
    """Milliseconds since the epoch that run as evenly as the monotonic clock.

    Deadlines are counted in them, the fence among them: a machine's clock that is set, forwards
    or back, must neither fire them nor hold them up. A wrong time is made good little by little.
    """

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns, self._monotonic_ns = wall_ns, monotonic_ns
        self._seen_ns = monotonic_ns()
        self._now_ns = wall_ns()

    def now_ms(self) -> int:
        """The time; it never goes back."""
        monotonic_ns = self._monotonic_ns()
        elapsed_ns, self._seen_ns = monotonic_ns - self._seen_ns, monotonic_ns
        self._now_ns += elapsed_ns
        behind_ns = self._wall_ns() - self._now_ns
        most_ns = elapsed_ns // _SLEW
        self._now_ns += max(-most_ns, min(most_ns, behind_ns))
        return self._now_ns // 1_000_000


class Shell:
    """Feeds a core and carries out its effects. Everything runs in one event loop."""

    def __init__(self, core: Core, clock: Clock) -> None:
        self.core = core
        self.clock = clock
        self.acknowledged = 0  # number of the newest event the operator has read
        self._numbers = itertools.count(1)
        self._links: dict[int, Link] = {}
        self._connections: dict[Link, int] = {}
        self._are_gone: asyncio.Event | None = None  # all agents, at the end
        self._complained_ms = self._complaints = 0
        self._told = 0
        self._is_settling = False
        self._are_losses_told = False
        self._news = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- agents

    def joined(self, link: Link, hello: Hello) -> None:
        """An agent has proved itself: take it in, or refuse it."""
        connection = next(self._numbers)
        self._links[connection], self._connections[link] = link, connection
        effects = self.core.hello(connection, hello, self.clock.now_ms())
        if self.core.roster.of(connection):
            link.send(encode(Welcome()))
        self.carry_out(effects)
        self.settle_soon()

    def said(self, link: Link, message: Message) -> None:
        """An agent that has been taken in says something."""
        connection = self._connections[link]
        self.carry_out(self.core.message(connection, message, self.clock.now_ms()))
        self.settle_soon()

    def ended(self, link: Link) -> None:
        """Its connection is over."""
        connection = self._connections.pop(link)
        del self._links[connection]
        self.core.broken(connection, self.clock.now_ms())
        if self._are_gone and not self._links:
            self._are_gone.set()

    def complain(self, problem: str) -> None:
        """A line of the log about a connection, unless there are too many."""
        now_ms = self.clock.now_ms()
        if now_ms - self._complained_ms >= _MINUTE_MS:
            if self._complaints > _COMPLAINTS:
                log(f"{self._complaints - _COMPLAINTS} more complaints about connections")
            self._complained_ms, self._complaints = now_ms, 0
        self._complaints += 1
        if self._complaints <= _COMPLAINTS:
            log(problem)

    def tell(
        self, notices: Iterable[Notice], budgets: Mapping[str, int], taken_away: Iterable[int]
    ) -> None:
        """Take in what the operator tells."""
        self.core.limit(budgets)
        self.core.explain(taken_away)
        self.carry_out(self.core.notice(notices, self.clock.now_ms()))

    def carry_out(self, effects: Iterable[Send]) -> None:
        """Send what the core wants sent."""
        encoded: tuple[Message | None, bytes] = (None, b"")
        for effect in effects:
            link = self._links.get(effect.connection)
            if link is None:
                continue
            if effect.message is not None:
                if effect.message is not encoded[0]:  # the same one goes to thousands
                    encoded = effect.message, encode(effect.message)
                link.send(encoded[1])
            if effect.is_last:
                link.close()

    def settle_soon(self) -> None:
        """Settle once for all messages of this turn of the loop."""
        if not self._is_settling:
            self._is_settling = True
            asyncio.get_running_loop().call_soon(self._settle)

    def _settle(self) -> None:
        self._is_settling = False
        self.carry_out(self.core.settle(self.clock.now_ms()))
        self._publish()

    async def tick_forever(self) -> None:
        """Let time pass for the core."""
        loop = asyncio.get_running_loop()
        while True:
            # As a callback, so that an error reaches the loop's handler and not a task's end.
            loop.call_soon(self._tick)
            await asyncio.sleep(TICK_S)

    def _tick(self) -> None:
        self.carry_out(self.core.tick(self.clock.now_ms()))
        self._publish()

    async def finish(self) -> None:
        """Send all agents home and wait until they have been told."""
        self._are_gone = asyncio.Event()
        self.carry_out(self.core.finish())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FINISH_S):
                while self._links:
                    await self._are_gone.wait()

    # ---- events

    def _publish(self) -> None:
        """Print new events and wake up who waits for them."""
        timeline = self.core.timeline
        if timeline.last == self._told:
            return
        for event in timeline.after(self._told, limit=timeline.last, most_bytes=KEPT_BYTES):
            print(json.dumps(event.to_json()), flush=True)
        if self.core.stage in (Stage.FINISHED, Stage.GAVE_UP) and not self._are_losses_told:
            self._are_losses_told = True
            print(json.dumps({"losses": self.core.losses.after(0)}), flush=True)
        self._told = timeline.last
        task = asyncio.get_running_loop().create_task(self._notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def events_after(
        self, epoch: str, seq: int, wait_s: float, most_bytes: int
    ) -> list[Event]:
        """Events after ``seq``, waiting for the first one at most ``wait_s`` seconds."""
        timeline = self.core.timeline
        if epoch not in ("", timeline.epoch):
            seq = 0
        elif seq > self.acknowledged:
            async with self._news:
                self.acknowledged = seq
                self._news.notify_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s), self._news:
                await self._news.wait_for(lambda: timeline.last > seq)
        return timeline.after(seq, most_bytes=most_bytes)

    async def wait_for(self, stage: Stage) -> None:
        """Wait until the core has reached a stage."""
        async with self._news:
            await self._news.wait_for(lambda: self.core.stage is stage)

    async def wait_farewell(self, begins_s: float, ends_s: float) -> None:
        """Wait for a farewell to begin within ``begins_s``, and for its end within ``ends_s``."""
        core = self.core
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(begins_s), self._news:
                await self._news.wait_for(lambda: core.farewell or core.stage is not Stage.RUNNING)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ends_s), self._news:
                await self._news.wait_for(lambda: not core.farewell)

    async def wait_acknowledged(self, limit_s: float) -> None:
        """Wait until the operator has read everything, at most ``limit_s`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s), self._news:
                await self._news.wait_for(lambda: self.acknowledged >= self.core.timeline.last)


def log(message: str) -> None:
    """A line of the coordinator's log, in the same form as its events."""
    print(json.dumps({"log": message}), flush=True)
