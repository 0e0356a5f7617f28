"""One job in simulated time: a real coordinator core with one agent for every slice.

Between two things that happen nothing is called, so that a year takes seconds. The core's
own time limits (silence, broken streams, back-off) are waited for in its own ticks.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import heapq
import itertools
import signal
from collections.abc import Callable

from tpujob_agent import protocol
from tpujob_agent.protocol import ExitCode, Phase, ProcessState, Report
from tpujob_agent.wire import member_timeout_s
from tpujob_coordinator import elasticity, fence
from tpujob_coordinator.core import Core
from tpujob_coordinator.membership import Place, wanted_hosts
from tpujob_coordinator.roster import BROKEN_STREAM_MS
from tpujob_coordinator.stages import Send, Stage
from tpujob_coordinator.timeline import KEPT_BYTES
from tpujob_operator.core.history import History
from tpujob_operator.core.observations import Fact, FactKind
from tpujob_operator.core.timeline import TimelineBatch
from tpujob_operator.sim.agent import Agent, config_of, cost_of, idle_word
from tpujob_operator.sim.faults import Fault, FaultKind
from tpujob_operator.sim.scenario import Scenario
from tpujob_operator.sim.training import Training

START_MS = 1_000_000_000
_TOKEN = "simulated"  # noqa: S105 - no secret
_TICK_MS = 1_000
#: The trainer's own interval until a save has been measured.
_FIRST_INTERVAL_MS = 60_000


class Job:
    """A job from its creation on."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.times = scenario, scenario.times
        self.features = scenario.features
        self.now_ms = START_MS
        config = config_of(scenario)
        self.core = Core(config, "sim", START_MS)
        self._timeout_s = member_timeout_s(wanted_hosts(config))
        self.history = History.start(START_MS)
        slices = range(scenario.slices + self.features.spares)
        places = [Place(i, host) for i in slices for host in range(scenario.agents_per_slice)]
        self.agents = [Agent(number, place) for number, place in enumerate(places)]
        self.training: Training | None = None
        self.stored_step = 0  # newest durable checkpoint
        self.step = 0  # reached in the end
        fixed_ms = round(scenario.fixed_interval_steps * self.times.step * 1000)
        self.interval_ms = _FIRST_INTERVAL_MS if self.features.auto_interval else fixed_ms
        self._numbers = itertools.count(1)
        self._connected: dict[int, Agent] = {}
        self._starting: set[int] = set()  # agents of the newest world that have begun
        self._generation = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._effects: collections.deque[Send] = collections.deque()
        self._told_ms = 0  # when a commit was last told

    def run(self, faults: list[Fault]) -> None:
        """Everything up to the end of the scenario."""
        self._note(FactKind.ATTEMPT_STARTED, attempt=1)
        self._note(FactKind.PODS_BOUND)
        for fault in faults:
            self._at(START_MS + fault.at_ms, functools.partial(self._strike, fault))
        for agent in self.agents:
            self._connect(agent)
        self._pump()
        end_ms = START_MS + self.scenario.duration_ms
        while self._queue and self._queue[0][0] <= end_ms:
            self.now_ms, _, happens = heapq.heappop(self._queue)
            happens()
            self._pump()
        self.now_ms = end_ms
        self.step = self._tell_steps() or self.stored_step
        self._pump()
        self.history = self.history.advance(end_ms)

    # ---- time

    def _at(self, at_ms: int, happens: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (at_ms, next(self._numbers), happens))

    def _after(self, delay_s: float, happens: Callable[[], None]) -> None:
        self._at(self.now_ms + round(delay_s * 1000), happens)

    def _tick(self) -> None:
        self._effects.extend(self.core.tick(self.now_ms))

    def _tick_for(self, span_ms: int) -> None:
        """Let the core notice what it waits for; it takes a gap between ticks for its own."""
        self._tick()
        for later_ms in range(_TICK_MS, span_ms + 2 * _TICK_MS, _TICK_MS):
            self._at(self.now_ms + later_ms, self._tick)

    # ---- messages

    def _pump(self) -> None:
        """Deliver everything, until nobody has anything to say."""
        while True:
            while self._effects:
                self._deliver(self._effects.popleft())
            self._effects.extend(self.core.settle(self.now_ms))
            if not self._effects:
                break
        self._read_timeline()

    def _deliver(self, send: Send) -> None:
        agent = self._connected.get(send.connection)
        if agent is None:
            return
        if not agent.is_dead:
            self._obey(agent, send.message)
        elif send.is_last:  # it was given up: now it is replaced
            self._disconnect(agent)
            self._after(self.times.replace, lambda: self._connect(agent))

    def _obey(self, agent: Agent, message: protocol.Message | None) -> None:
        if isinstance(message, protocol.Run):
            self.interval_ms = message.save_every_ms or self.interval_ms
            self._start(agent, message)
        elif isinstance(message, protocol.SaveEvery):
            self.interval_ms = message.interval_ms
        elif isinstance(message, protocol.Stop) and agent.is_running:
            self._tell(agent, state=ProcessState.STOPPED, signal=9, exited_at_ms=self.now_ms)
            self._ended(agent)
        elif isinstance(message, protocol.Save) and self.training and agent.number == self._leader:
            training = self.training
            self._at(training.time_of(message.step), lambda: self._save_and_leave(training))

    @property
    def _leader(self) -> int:
        """Number of the agent that leads the world; the first one if there is no world."""
        if not self.core.world:
            return 0
        place = self.core.world.places[0]
        return place.slice * self.scenario.agents_per_slice + place.host

    def _tell(self, agent: Agent, **fields: object) -> None:
        report = agent.report or Report(self.now_ms, ProcessState.IDLE, 0)
        agent.report = dataclasses.replace(report, sent_at_ms=self.now_ms, **fields)  # type: ignore[arg-type] # names of its fields
        self._effects.extend(self.core.message(agent.connection, agent.report, self.now_ms))

    def _connect(self, agent: Agent) -> None:
        """New pods of a slice have started."""
        number = next(self._numbers)
        agent.connection, agent.report = number, None
        agent.is_dead = agent.is_leaving = False
        self._connected[number] = agent
        hello = protocol.Hello(
            *agent.place, f"p{number}", f"n{number}", "10.0.0.1", str(number), self.now_ms
        )
        self._effects.extend(self.core.hello(number, hello, self.now_ms))
        self._tell(agent)
        self._look_for_growth()

    def _look_for_growth(self) -> None:
        """The core grows a world in its ticks, and not again within a pause."""
        if self.features.elastic:
            for later_ms in (_TICK_MS, elasticity.PAUSE_MS):
                self._at(self.now_ms + later_ms, self._tick)

    def _disconnect(self, agent: Agent) -> None:
        self._connected.pop(agent.connection, None)
        self.core.broken(agent.connection, self.now_ms)
        agent.connection, agent.report = 0, None

    # ---- a world

    def _start(self, agent: Agent, run: protocol.Run) -> None:
        if run.generation != self._generation:
            self._generation, self._starting, self.training = run.generation, set(), None
        self._tell(
            agent,
            state=ProcessState.RUNNING,
            generation=run.generation,
            phase=Phase.STARTING,
            phase_at_ms=self.now_ms,
            restored_step=-1,
            step=0,
            first_step=0,
            committed_step=0,
            save_blocked_ms=0,
            obeys_saves=True,
        )
        self._starting.add(agent.number)
        if len(self._starting) == run.num_processes:
            self._enter(run.generation, Phase.INIT)
            self._after(self.times.init, lambda: self._enter(run.generation, Phase.RESTORE))

    def _is_whole(self, generation: int) -> bool:
        """Whether all processes of this world are alive still."""
        return generation == self._generation and all(
            self.agents[i].is_running and not self.agents[i].is_dead for i in self._starting
        )

    def _enter(self, generation: int, phase: Phase) -> None:
        if not self._is_whole(generation):
            return
        fields: dict[str, object] = {"phase": phase, "phase_at_ms": self.now_ms}
        if phase is Phase.RESTORE:
            self._after(self.times.restore, lambda: self._enter(generation, Phase.SETUP))
        elif phase is Phase.SETUP:
            fields["restored_step"] = self.stored_step
            self._after(self.times.first_step, lambda: self._enter(generation, Phase.TRAIN))
        elif phase is Phase.TRAIN:
            first = self.stored_step + 1
            fields |= {"first_step": first, "first_step_at_ms": self.now_ms}
            fields |= {"step": first, "step_at_ms": self.now_ms}
        for i in self._starting:
            self._tell(self.agents[i], **fields)
        if phase is Phase.TRAIN:
            self._train()

    def _train(self) -> None:
        times = self.times
        self.training = Training(
            self.stored_step + 1,
            self.now_ms,
            # The batch stays, so fewer slices take longer over it.
            round(times.step * 1000 * self.scenario.agents / len(self._starting)),
            round(times.blocked * 1000),
            round(times.lag * 1000),
        )
        self._told_ms = 0
        self._plan_save(self.training)
        self._look_for_growth()

    def _plan_save(self, training: Training) -> None:
        self._at(training.next_save_ms(self.interval_ms), lambda: self._save(training))

    def _save(self, training: Training) -> None:
        if training is not self.training:
            return
        saving = training.save(self.now_ms)
        self._store(training)
        self._plan_save(training)
        if self.now_ms - self._told_ms >= self.scenario.told_every_s * 1000:
            self._told_ms = self.now_ms
            self._at(saving.durable_at_ms, lambda: self._tell_if(training))

    def _tell_if(self, training: Training) -> None:
        if training is self.training:
            self._tell_steps()

    def _store(self, training: Training) -> None:
        if training.committed:
            self.stored_step = max(self.stored_step, training.committed.step)

    def _tell_steps(self) -> int:
        """The leader's agent reports how far training is; returns the step, 0 without one."""
        training, agent = self.training, self.agents[self._leader]
        if training is None or not agent.is_running:
            return 0
        training.commit(self.now_ms)
        self._store(training)
        step, step_at_ms = training.reached(self.now_ms)
        fields: dict[str, object] = {"step": step, "step_at_ms": step_at_ms}
        fields["save_blocked_ms"] = training.total_blocked_ms
        if committed := training.committed:
            fields |= cost_of(committed)
        self._tell(agent, **fields)
        return step

    # ---- faults

    def _strike(self, fault: Fault) -> None:
        firsts = [self.agents[i * self.scenario.agents_per_slice] for i in fault.slices]
        struck = [a for a in firsts if a.connection and not (a.is_dead or a.is_leaving)]
        if not struck:
            return
        self._tell_steps()
        if fault.kind is FaultKind.CRASH:
            self._crash(struck[0])
        elif fault.kind is FaultKind.PLANNED and self.features.in_place:
            self._give_notice(struck[0])
        else:
            self._fall_silent(struck)

    def _halt(self, agent: Agent) -> None:
        """Nobody gets on without this one."""
        if agent.is_running and agent.number in self._starting:
            self.training = None

    def _crash(self, agent: Agent) -> None:
        if not agent.is_running:
            return
        self._halt(agent)
        how = {"state": ProcessState.EXITED, "signal": int(signal.SIGSEGV)}
        self._tell(agent, exited_at_ms=self.now_ms, exit_code=None, **how)
        self._ended(agent)

    def _fall_silent(self, agents: list[Agent]) -> None:
        for agent in agents:
            self._halt(agent)
            agent.is_dead = True
        unnoticed_s = 0.0 if self.features.in_place else self.times.silence
        self._after(max(0.0, unnoticed_s - self._timeout_s), self._listen)

    def _listen(self) -> None:
        """From now on the core hears the others only, until it has had enough."""
        self._tick()
        for agent in self._connected.values():
            self.core.message(agent.connection, idle_word(agent, self.now_ms), self.now_ms)
        silent_ms = round(self._timeout_s * 1000)
        self._at(self.now_ms + silent_ms // 2, self._others_speak)
        self._tick_for(silent_ms)

    def _others_speak(self) -> None:
        for agent in list(self._connected.values()):
            if not agent.is_dead:
                self._tell(agent)

    def _give_notice(self, agent: Agent) -> None:
        agent.is_leaving = True
        grace_ms = round(self.times.grace * 1000)
        leaving = protocol.Leaving(self.now_ms, grace_ms)
        self._effects.extend(self.core.message(agent.connection, leaving, self.now_ms))
        connection = agent.connection
        self._at(self.now_ms + grace_ms, lambda: self._depart(agent, connection))
        if not agent.is_running:
            self._depart(agent, connection)

    def _save_and_leave(self, training: Training) -> None:
        """The farewell's save: everybody exits when it is durable."""
        if training is not self.training:
            return
        saving = training.save(self.now_ms)
        training.resumed_ms = saving.durable_at_ms  # no step follows it
        self._at(saving.durable_at_ms, lambda: self._leave(training))

    def _leave(self, training: Training) -> None:
        if training is not self.training:
            return
        self._tell_steps()
        self.training = None
        for i in list(self._starting):
            agent, code = self.agents[i], int(ExitCode.PREEMPTED)
            if agent.is_running and not agent.is_dead:
                self._tell(
                    agent, state=ProcessState.EXITED, exit_code=code, exited_at_ms=self.now_ms
                )
                self._ended(agent)

    def _ended(self, agent: Agent) -> None:
        """A process has ended: where pods go with their programs, so does the pod."""
        if agent.is_leaving:
            self._depart(agent, agent.connection)
        elif not self.features.in_place:
            self._depart(agent, agent.connection, self.times.recreate)

    def _depart(self, agent: Agent, connection: int, back_after_s: float | None = None) -> None:
        if agent.connection != connection:
            return
        self._disconnect(agent)
        self._tick_for(BROKEN_STREAM_MS)
        delay_s = self.times.replace if back_after_s is None else back_after_s
        self._after(delay_s, lambda: self._connect(agent))

    # ---- what the operator sees

    def _note(self, kind: FactKind, **data: int) -> None:
        self.history = self.history.apply(Fact(self.now_ms, kind, data))

    def _read_timeline(self) -> None:
        timeline = self.core.timeline
        if timeline.last == self.history.cursor.seq:
            return
        events = timeline.after(self.history.cursor.seq, limit=timeline.last, most_bytes=KEPT_BYTES)
        self.history = self.history.read(TimelineBatch(timeline.epoch, tuple(events), self.now_ms))
        if self.core.stage is Stage.FORMING:
            if self.core.backoff_until_ms > self.now_ms:
                self._at(self.core.backoff_until_ms, self._tick)
            for wait_s in (self.features.replacement_timeout_s, fence.HELD_S):
                self._after(wait_s, self._tick)
