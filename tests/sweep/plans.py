"""Plans: one fault each, drawn up from what a life without faults did."""

from __future__ import annotations

import dataclasses
import random
import signal
import threading
from collections.abc import Callable, Sequence

from tests.faultproxy.faults import (
    Cut,
    Delay,
    EventFault,
    EventMatch,
    LoseAnswer,
    Match,
    RandomRule,
    Refuse,
    Strike,
)
from tests.faultproxy.journal import Seen, Write
from tests.faultproxy.proxy import FaultProxy
from tests.sweep.operators import Keeper

#: How long the operator is blind: longer than it takes to answer anything.
_BLIND_S = 3.0
_TOGETHER_S = 1.0
_RATE = 0.15
RANDOM_PLANS = 40
_RANDOM_FAULTS = (Refuse(429, 1), Refuse(500), Refuse(503), Cut(), Delay(0.5))
_RANDOM_OF_WRITES = (*_RANDOM_FAULTS, Refuse(409), LoseAnswer(), LoseAnswer(504))


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    """What an operator wrote and saw in a life without faults, and the life's steps."""

    writes: tuple[Write, ...]
    events: tuple[Seen, ...]
    steps: int


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """One fault in one life."""

    life: str
    family: str
    target: str  # in words; with life and family it names the plan
    write: Write | None = None
    event: Seen | None = None
    number: int = 0  # of a step, or a seed

    @property
    def id(self) -> str:
        """The plan's name."""
        return f"{self.life}:{self.family}:{self.target}"


class Armed:
    """A plan at work on one operator."""

    def __init__(self, plan: Plan, proxy: FaultProxy, keeper: Keeper) -> None:
        self._plan = plan
        self._proxy = proxy
        self._keeper = keeper
        self._timers: list[threading.Timer] = []
        self._is_hit: Callable[[], bool] = lambda: False
        FAMILIES[plan.family].arm(self)

    @property
    def is_hit(self) -> bool:
        """Whether what the fault was to hit has come."""
        return self._is_hit()

    def begin_step(self, number: int) -> None:
        """A step of the life begins."""
        family = FAMILIES[self._plan.family]
        if family.begin is not None and number == self._plan.number:
            self._is_hit = lambda: True
            family.begin(self)

    def end(self) -> None:
        """The life is over, and so are all faults."""
        for timer in self._timers:
            timer.cancel()
        self._proxy.heal()

    # ---- what the families do

    def _on_write(self, fault: Strike | LoseAnswer) -> None:
        write = self._plan.write
        assert write is not None
        resource, _, subresource = write.target.partition("/")
        match = Match(write.verb, resource, write.name, subresource)
        rule = self._proxy.on(match, fault, nth=write.nth)
        self._is_hit = lambda: rule.hits > 0

    def kill_before(self) -> None:
        """The write does not happen, and the operator is dead."""
        self._on_write(Strike(before=self._keeper.kill, is_lost=True))

    def kill_after(self) -> None:
        """The write has happened, and the operator is dead."""
        self._on_write(Strike(after=self._keeper.kill))

    def kill_and_look_back(self) -> None:
        """The operator that comes sees for a while what was before the write."""
        self._on_write(Strike(before=self._blind, after=self._keeper.kill))

    def lose_answer(self) -> None:
        """The write has happened, and the connection ends."""
        self._on_write(LoseAnswer())

    def deny(self) -> None:
        """The write has happened, and the answer is an error."""
        self._on_write(LoseAnswer(504))

    def miss(self) -> None:
        """The watch ends before the event, and the next one begins with a list."""
        self._on_event(EventFault.EXPIRE)

    def drop(self) -> None:
        """The event is left out."""
        self._on_event(EventFault.DROP)

    def _on_event(self, fault: EventFault) -> None:
        event = self._plan.event
        assert event is not None
        match = EventMatch(event.type, event.resource, event.name)
        rule = self._proxy.on_event(match, fault, nth=event.nth)
        self._is_hit = lambda: rule.hits > 0

    def freeze(self) -> None:
        """Watches are silent for a while."""
        self._proxy.freeze()
        self._later(self._proxy.thaw)

    def coalesce(self) -> None:
        """Of what happens to an object within a while, only its last state arrives."""
        self._proxy.coalesce(_TOGETHER_S)
        self._later(lambda: self._proxy.coalesce(0))

    def look_back(self) -> None:
        """A new operator sees for a while what was before the step."""
        self._proxy.freeze(lists_too=True)
        self._keeper.kill()
        self._later(self._proxy.thaw)

    def pause(self) -> None:
        """The operator stands still for a while."""
        pid = self._keeper.pid
        self._keeper.send(pid, signal.SIGSTOP)
        self._later(lambda: self._keeper.send(pid, signal.SIGCONT))

    def _blind(self) -> object:
        self._later(self._proxy.thaw)
        return self._proxy.freezing(lists_too=True)()

    def _later(self, work: Callable[[], object]) -> None:
        timer = threading.Timer(_BLIND_S, work)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def fail_at_random(self) -> None:
        """Any request may fail, until the life is over."""
        seed = self._plan.number
        rules = (
            RandomRule(seed, _RATE, _RANDOM_OF_WRITES, Match(is_write=True)),
            RandomRule(seed, _RATE, _RANDOM_FAULTS, Match(is_write=False)),
        )
        for rule in rules:
            self._proxy.at_random(rule)
        self._is_hit = lambda: any(rule.hits for rule in rules)


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """One way to go wrong."""

    arm: Callable[[Armed], None]
    begin: Callable[[Armed], None] | None = None  # what happens at the plan's step


def _nothing(_: Armed) -> None:
    """All is done at the step."""


_ON_WRITES: dict[str, Family] = {
    "killed-before": Family(Armed.kill_before),
    "killed-after": Family(Armed.kill_after),
    "answer-lost": Family(Armed.lose_answer),
    "answer-504": Family(Armed.deny),
    "killed-stale": Family(Armed.kill_and_look_back),
}
_ON_EVENTS: dict[str, Family] = {"missed": Family(Armed.miss)}
_ON_STEPS: dict[str, Family] = {
    "frozen": Family(_nothing, Armed.freeze),
    "coalesced": Family(_nothing, Armed.coalesce),
    "stale": Family(_nothing, Armed.look_back),
    "paused": Family(_nothing, Armed.pause),
}
_AT_RANDOM: dict[str, Family] = {"random": Family(Armed.fail_at_random)}
FAMILIES: dict[str, Family] = {**_ON_WRITES, **_ON_EVENTS, **_ON_STEPS, **_AT_RANDOM}


def plans_for(life: str, recording: Recording) -> list[Plan]:
    """All plans for a life."""
    made: list[Plan] = []
    for family in _ON_WRITES:
        made += [Plan(life, family, _words(w), write=w) for w in recording.writes if w.is_effective]
    for family in _ON_EVENTS:
        made += [Plan(life, family, _event_words(e), event=e) for e in recording.events]
    for family in _ON_STEPS:
        made += [Plan(life, family, str(step), number=step) for step in range(recording.steps)]
    made += [Plan(life, "random", str(seed), number=seed) for seed in range(RANDOM_PLANS)]
    return made


def sample(plans: Sequence[Plan], each: int, seed: int) -> list[Plan]:
    """So many plans of every family."""
    chosen: list[Plan] = []
    for family in dict.fromkeys(plan.family for plan in plans):
        of_family = [plan for plan in plans if plan.family == family]
        chosen += random.Random(f"{seed} {family}").sample(of_family, min(each, len(of_family)))
    return chosen


def _words(write: Write) -> str:
    return f"{write.verb}-{write.target}-{write.name}-{write.nth}".replace("/", ".")


def _event_words(event: Seen) -> str:
    return f"{event.type}-{event.resource}-{event.name}-{event.nth}"
