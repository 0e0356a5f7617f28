"""Agents and a network in simulated time around a real core."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from tpujob_agent import protocol
from tpujob_agent.protocol import CoordinatorConfig, EventKind, Message, Phase, ProcessState, Report
from tpujob_coordinator.core import Core
from tpujob_coordinator.membership import Place
from tpujob_coordinator.stages import Send

TOKEN = "secret"
NO_LIMITS = {"userError": -1, "process": -1, "infrastructure": -1, "noProgress": -1}


def config(slices: int = 2, hosts: int = 2, spares: int = 0, **budgets: int) -> CoordinatorConfig:
    """A configuration without limits but the given ones."""
    return CoordinatorConfig("ns", "j", 1, slices, spares, hosts, {**NO_LIMITS, **budgets})


def elastic(slices: int, *smaller: int, timeout_ms: int = 60_000, **more: int) -> CoordinatorConfig:
    """A configuration that allows smaller worlds too, of single-host slices unless told."""
    plain = config(slices, **{"hosts": 1, **more})
    return dataclasses.replace(
        plain, smaller_worlds=list(smaller), replacement_timeout_ms=timeout_ms
    )


@dataclasses.dataclass
class SimAgent:
    """Behaves as ``tpujob_agent.agent`` does, message by message."""

    place: Place
    incarnation: str
    pod: str
    connection: int | None = None
    newest: int = 0
    report: Report | None = None
    is_dying: bool = False  # killed, not reaped yet
    next_run: protocol.Run | None = None
    is_leaving: bool = False
    fence_ms: int = 0  # of the newest generation
    alone_since_ms: int = 0
    finished: bool = False
    orders: list[Message] = dataclasses.field(default_factory=list)  # all that came
    inbox: collections.deque[Message] = dataclasses.field(default_factory=collections.deque)
    outbox: collections.deque[Message] = dataclasses.field(default_factory=collections.deque)

    @property
    def live_generation(self) -> int:
        """Generation of the process that exists; 0: none."""
        is_live = self.report is not None and self.report.state is ProcessState.RUNNING
        return self.report.generation if is_live and self.report else 0

    def leave(self, now_ms: int) -> None:
        """SIGTERM reaches the agent."""
        self.is_leaving, self.next_run = True, None
        self.is_dying = bool(self.live_generation)
        if self.connection is not None:
            self.outbox.append(protocol.Leaving(now_ms, 30_000))

    def announce(self, now_ms: int, grace_ms: int = 30_000) -> None:
        """SIGTERM reaches the agent, whose trainer obeys requests to save."""
        self.is_leaving = True
        if self.connection is not None:
            self.outbox.append(protocol.Leaving(now_ms, grace_ms))

    def obey(self, message: Message, now_ms: int) -> None:
        """Process one message of the coordinator."""
        self.orders.append(message)
        if isinstance(message, protocol.Run):
            if self.is_leaving or message.generation <= self.newest:
                self.tell(now_ms)
                return
            self.next_run = message
            self.is_dying = bool(self.live_generation)
            self._start_if_free(now_ms)
        elif isinstance(message, protocol.Stop):
            if self.next_run and self.next_run.generation <= message.generation:
                self.next_run = None
            if self.live_generation and self.live_generation <= message.generation:
                self.is_dying = True
        elif isinstance(message, protocol.Finish):
            self.finished = True
        elif isinstance(message, protocol.Excuse) and self.report:
            self.report = dataclasses.replace(self.report, stalled="", stacks="")
        elif isinstance(message, protocol.Ping):
            self.outbox.append(protocol.Pong(message.sent_at_ms, now_ms))
            return
        self.tell(now_ms)

    def _start_if_free(self, now_ms: int) -> None:
        if self.next_run and not self.live_generation:
            self.newest = self.next_run.generation
            size, self.fence_ms = self.next_run.num_processes, self.next_run.fence_s * 1000
            self.report = Report(now_ms, ProcessState.RUNNING, self.newest, size)
            self.next_run = None

    def stop_if_fenced(self, now_ms: int) -> None:
        """Alone for too long, it stops its trainer."""
        is_alone = self.connection is None and bool(self.live_generation)
        if is_alone and 0 < self.fence_ms <= now_ms - self.alone_since_ms:
            self.is_dying = True

    def reap(self, now_ms: int) -> None:
        """A killed process is gone."""
        if self.is_dying and self.report:
            self.is_dying = False
            self.end(now_ms, state=ProcessState.STOPPED, signal=9)

    def end(self, now_ms: int, **how: Any) -> None:
        """The process ends."""
        if self.report and self.live_generation:
            how = {"state": ProcessState.EXITED, **how}
            self.report = dataclasses.replace(self.report, exited_at_ms=now_ms, **how)
            self.is_dying = False
            self.tell(now_ms)
            self._start_if_free(now_ms)

    def advance(self, now_ms: int, **fields: Any) -> None:
        """The program gets on."""
        if self.report and self.live_generation:
            self.report = dataclasses.replace(self.report, **fields)
            self.tell(now_ms)

    def tell(self, now_ms: int) -> None:
        """Send a report."""
        if self.connection is not None:
            report = self.report or Report(now_ms, ProcessState.IDLE, self.newest)
            self.outbox.append(dataclasses.replace(report, sent_at_ms=now_ms))


class Simulation:
    """One job."""

    def __init__(self, wanted: CoordinatorConfig) -> None:
        self.config = wanted
        self.now_ms = 1_000_000
        self._numbers = itertools.count(1)
        self.agents: dict[Place, SimAgent] = {}
        self.refusals: list[str] = []
        self.past: list[protocol.Event] = []  # of earlier coordinators
        self.core = self._new_core()

    def _new_core(self) -> Core:
        return Core(self.config, f"epoch{next(self._numbers)}", self.now_ms)

    @property
    def places(self) -> list[Place]:
        """Every place of the job."""
        slices = range(self.config.slices + self.config.spares)
        return [Place(s, h) for s in slices for h in range(self.config.hosts_per_slice)]

    def train(self, *, obeys: bool = True, step: int = 11) -> None:
        """Every running trainer takes steps."""
        for agent in self.agents.values():
            agent.advance(
                self.now_ms,
                phase=Phase.TRAIN,
                phase_at_ms=self.now_ms,
                obeys_saves=obeys,
                restored_step=0,
                first_step=1,
                first_step_at_ms=self.now_ms - 1000,
                step=step,
                step_at_ms=self.now_ms,
            )
        self.settle()

    def events(self, *kinds: EventKind) -> list[protocol.Event]:
        """The present coordinator's events (of these kinds)."""
        every = self.core.timeline.after(0, limit=1_000_000, most_bytes=1 << 30)
        return [event for event in every if not kinds or event.kind in kinds]

    # ---- faults and life

    def boot(self, place: Place, *, new_pod: bool = False) -> SimAgent:
        """A container starts; what ran there before is gone."""
        number = next(self._numbers)
        old = self.agents.get(place)
        pod = f"pod{number}" if new_pod or old is None else old.pod
        if old:
            self.disconnect(old)
        agent = self.agents[place] = SimAgent(place, f"incarnation{number}", pod)
        return agent

    def connect(self, agent: SimAgent, **changes: Any) -> None:
        """The agent (re)connects: Hello and a full report."""
        if agent.connection is not None:
            self.disconnect(agent)
        agent.connection = next(self._numbers)
        hello = protocol.Hello(
            slice=agent.place.slice,
            host=agent.place.host,
            pod=agent.pod,
            node=f"node{agent.place.slice}{agent.place.host}",
            ip=f"10.0.{agent.place.slice}.{agent.place.host}",
            incarnation=agent.incarnation,
            sent_at_ms=self.now_ms,
        )
        hello = dataclasses.replace(hello, **changes)
        self.route(self.core.hello(agent.connection, hello, self.now_ms))
        if agent.is_leaving:
            agent.announce(self.now_ms)
        agent.tell(self.now_ms)

    def disconnect(self, agent: SimAgent) -> None:
        """The stream breaks; what is under way is lost."""
        if agent.connection is not None:
            self.core.broken(agent.connection, self.now_ms)
            agent.connection, agent.alone_since_ms = None, self.now_ms
        agent.inbox.clear()
        agent.outbox.clear()

    def restart_coordinator(self) -> None:
        """The coordinator's pod is replaced."""
        self.past += self.events()
        self.core = self._new_core()
        for agent in self.agents.values():
            if agent.connection is not None:
                agent.connection, agent.alone_since_ms = None, self.now_ms
            agent.inbox.clear()
            agent.outbox.clear()

    # ---- network and time

    def route(self, effects: list[Send]) -> None:
        """Put the core's messages on their way."""
        agents = {a.connection: a for a in self.agents.values() if a.connection is not None}
        for effect in effects:
            agent = agents.get(effect.connection)
            if agent and effect.message:
                agent.inbox.append(effect.message)
            if isinstance(effect.message, protocol.Refused):
                self.refusals.append(effect.message.reason)
            if agent and effect.is_last and not isinstance(effect.message, protocol.Finish):
                self.disconnect(agent)

    def deliver_to(self, agent: SimAgent) -> None:
        """One message reaches an agent."""
        if agent.inbox:
            agent.obey(agent.inbox.popleft(), self.now_ms)

    def deliver_from(self, agent: SimAgent) -> None:
        """One message reaches the coordinator."""
        if agent.outbox and agent.connection is not None:
            message = agent.outbox.popleft()
            self.route(self.core.message(agent.connection, message, self.now_ms))
            self.route(self.core.settle(self.now_ms))

    def tick(self, ms: int = 1000) -> None:
        """Time passes; agents report, but nothing arrives yet."""
        self.now_ms += ms
        for agent in self.agents.values():
            agent.stop_if_fenced(self.now_ms)
            agent.tell(self.now_ms)
        self.route(self.core.tick(self.now_ms))

    def wait(self, ms: int) -> None:
        """Time passes with everything arriving, in ticks of at most a second."""
        until_ms = self.now_ms + ms
        while self.now_ms < until_ms:
            self.tick(min(1000, until_ms - self.now_ms))
            self.settle()

    def settle(self) -> None:
        """Everything that is under way arrives."""
        for _ in range(10_000):
            if not any(a.inbox or a.outbox or a.is_dying for a in self.agents.values()):
                return
            for agent in list(self.agents.values()):
                self.deliver_to(agent)
                agent.reap(self.now_ms)
                self.deliver_from(agent)
        raise AssertionError("messages without end")

    def calm(self, seconds: int = 30) -> None:
        """No more faults: everybody is there, connected, and gets time."""
        for place in self.places:
            agent = self.agents.get(place)
            if agent is None or agent.is_leaving:
                agent = self.boot(place, new_pod=True)
            if agent.connection is None:
                self.connect(agent)
        for _ in range(seconds):
            self.wait(1000)
            for agent in self.agents.values():
                if agent.connection is None:
                    self.connect(agent)
        self.settle()

    def start(self) -> None:
        """Everybody joins, and the first world is formed."""
        for place in self.places:
            self.connect(self.boot(place))
        self.settle()


def check_story(events: Sequence[protocol.Event]) -> None:
    """A timeline is gapless, in order of time, and worlds follow each other as they must."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert all(a.at_ms <= b.at_ms for a, b in itertools.pairwise(events))
    generations = [e.data["generation"] for e in events if e.kind is EventKind.GENERATION_STARTED]
    assert generations == sorted(set(generations))
    stories = [e for e in events if e.kind in _LIFE]
    for event, following in itertools.pairwise(stories):
        assert following.kind in _LIFE[event.kind], f"{event} is followed by {following}"


_LIFE: dict[EventKind, set[EventKind]] = {
    EventKind.GENERATION_STARTED: {
        EventKind.LOSS,
        EventKind.GENERATION_LEFT,
        EventKind.FINISHED,
    },
    EventKind.LOSS: {EventKind.GENERATION_STOPPED},
    EventKind.GENERATION_LEFT: {EventKind.GENERATION_STOPPED},
    EventKind.GENERATION_STOPPED: {EventKind.GENERATION_STARTED, EventKind.GAVE_UP},
    EventKind.FINISHED: set(),
    EventKind.GAVE_UP: set(),
}
