"""The goodput ledger: a pure fold that cuts a job's life into types of time.

The cursor moves forward only, and whatever it passes is booked once, in whole
milliseconds, so that at every moment

    sum(closed) + unsettled + open interval == now - created

Time spent in steps is *unsettled* until a committed checkpoint covers the
steps; then it becomes productive (or a wait inside the step), and if the steps
are lost it becomes rollback. Counters made from ``closed`` therefore never fall.
The chips that were held meanwhile are booked along with the time.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from tpujob_agent.protocol import EventKind, Phase
from tpujob_operator.core.chips import Chips
from tpujob_operator.core.observations import FactKind, Observation
from tpujob_operator.core.segments import Segment, compact, split
from tpujob_operator.core.stored import known_word
from tpujob_operator.core.timetypes import TYPE_OF_PHASE, TimeType, TimeView, booked

#: A phase that only other versions know is neither steps nor anything else that has a name.
phase_of = functools.partial(known_word, Phase, otherwise=Phase.SETUP)


@dataclasses.dataclass(frozen=True, slots=True)
class Ledger:
    """Immutable state of the fold; times in milliseconds since the epoch."""

    created_ms: int
    cursor_ms: int
    closed: Mapping[TimeType, int] = dataclasses.field(default_factory=dict)
    unsettled: tuple[Segment, ...] = ()
    chips: Chips = dataclasses.field(default_factory=Chips)
    closed_chips: Mapping[TimeType, int] = dataclasses.field(default_factory=dict)
    generation: int = 0  # the running one; 0: none
    slices: int = 0  # of the newest world; 0: not known
    wanted_slices: int = 0
    full_step_ms: float = 0.0  # mean of a step in worlds of the wanted size; 0: not known
    restored_generation: int = 0
    phase: Phase = Phase.STARTING
    last_step: int = 0
    committed_step: int = 0
    unseen: bool = False  # nobody tells the steps of the running world
    suspended: bool = False
    queued: bool = False  # for quota
    leaving: bool = False  # the attempt is told to save and go
    stopping: bool = False
    bound: bool = False
    complete: bool = False
    backoff_until_ms: int = 0
    ended: bool = False

    @classmethod
    def start(cls, created_ms: int) -> Ledger:
        """The ledger of a job that was just created."""
        return cls(created_ms=created_ms, cursor_ms=created_ms)

    # ---- reading

    @property
    def is_told_to_go(self) -> bool:
        """Whether the world that runs, if any, is meant to end."""
        return self.suspended or self.leaving or self.queued

    @property
    def is_training(self) -> bool:
        """Whether the open interval is step time, which only the next event can classify."""
        return self.generation > 0 and self.phase is Phase.TRAIN

    @property
    def has_reached_steps(self) -> bool:
        """Whether the running world has begun to train, up to its last save."""
        return self.generation > 0 and self.phase in (Phase.TRAIN, Phase.FINISHING)

    @property
    def type_now(self) -> TimeType:
        """Type of the interval that is open at the cursor (step time: productive)."""
        is_left = self.leaving and not self.generation and not self.suspended
        if self.stopping or is_left:
            return TimeType.TEARDOWN
        if self.suspended:
            return TimeType.SUSPENDED
        if self.queued:
            return TimeType.QUEUED
        if self.backoff_until_ms > self.cursor_ms:
            return TimeType.BACKOFF
        if self.generation:
            return TYPE_OF_PHASE.get(self.phase, TimeType.PRODUCTIVE)
        before = TimeType.IMAGE if self.bound else TimeType.PROVISIONING
        return TimeType.RUNTIME_INIT if self.complete else before

    def view(self, now_ms: int) -> TimeView:
        """Types at ``now_ms``, the open interval included (as unsettled while training)."""
        reached = self.advance(now_ms)
        open_ms = 0 if reached.ended else max(0, now_ms - reached.cursor_ms)
        return TimeView(
            by_type_ms=reached.closed,
            unsettled_ms=sum(s.total_ms for s in reached.unsettled) + open_ms,
            unsettled_productive_ms=sum(s.productive_ms for s in reached.unsettled) + open_ms,
            wall_ms=reached.cursor_ms + open_ms - reached.created_ms,
            chip_ms_by_type=reached.closed_chips,
            unsettled_chip_ms=sum(s.chip_ms for s in reached.unsettled)
            + (reached.chips.open(now_ms) if open_ms else 0),
        )

    # ---- folding

    def advance(self, to_ms: int) -> Ledger:
        """Book the open interval up to ``to_ms``; step time stays open until an event ends it."""
        if self.ended or self.is_training:
            return self
        ledger = self
        if self.cursor_ms < self.backoff_until_ms < to_ms:
            ledger = ledger.book(self.backoff_until_ms, ledger.type_now)
        return ledger.book(to_ms, ledger.type_now)

    def book(self, to_ms: int, kind: TimeType) -> Ledger:
        """Book [cursor, to_ms] as ``kind``; a time before the cursor books nothing."""
        span = to_ms - self.cursor_ms
        if span <= 0:
            return self
        chip_ms, chips = self.chips.take(to_ms)
        return self.but(
            closed=booked(self.closed, ((kind, span),)),
            closed_chips=booked(self.closed_chips, ((kind, chip_ms),)),
            chips=chips,
            cursor_ms=to_ms,
        )

    def apply(self, seen: Observation) -> Ledger:
        """The ledger after one observation; observations come in the order of their time."""
        if self.ended:
            return self
        handler = _HANDLERS.get(seen.kind)
        return handler(self, seen) if handler else self.advance(seen.at_ms)

    def but(self, **changes: Any) -> Ledger:
        """A copy with changes."""
        return dataclasses.replace(self, **changes)

    @property
    def is_small(self) -> bool:
        """Whether the newest world has fewer slices than wanted."""
        return 0 < self.slices < self.wanted_slices

    def judge(self, segment: Segment) -> Segment:
        """In a small world only what the steps take in a whole one is productive."""
        if not self.is_small:
            return segment
        return segment.judged(self.full_step_ms, self.slices / self.wanted_slices)

    def measure(self, segment: Segment) -> Ledger:
        """Learn from steps how long one takes in a world of the wanted size."""
        is_rest = segment.first_step <= self.last_step  # of a step that was not finished
        if self.is_small or is_rest or not segment.productive_ms:
            return self
        return self.but(full_step_ms=segment.mean_step_ms(self.full_step_ms))

    def close_steps(self, to_ms: int, segment: Segment) -> Ledger:
        """End the open step interval at ``to_ms`` with the waits that ``segment`` tells of."""
        span = max(0, to_ms - self.cursor_ms)
        chip_ms, chips = self.chips.take(to_ms) if span else (0, self.chips)
        bounded = self.judge(segment.stretched_to(span))
        held = dataclasses.replace(bounded, chip_ms=chip_ms)
        return self.measure(bounded).but(
            unsettled=compact((*self.unsettled, held)) if span else self.unsettled,
            chips=chips,
            cursor_ms=self.cursor_ms + span,
            last_step=max(self.last_step, segment.last_step),
        )

    def settle(self, step: int) -> Ledger:
        """Book unsettled time of steps up to ``step``: a checkpoint covers them."""
        done, rest = split(self.unsettled, step)
        times = (part for segment in done for part in segment.by_type())
        chips = (part for segment in done for part in segment.chips_by_type())
        return self.but(
            closed=booked(self.closed, times),
            closed_chips=booked(self.closed_chips, chips),
            unsettled=rest,
        )

    def roll_back(self) -> Ledger:
        """Book all unsettled time as rollback: no checkpoint covers it any more."""
        lost = sum(segment.total_ms for segment in self.unsettled)
        if not lost:
            return self
        chip_ms = sum(segment.chip_ms for segment in self.unsettled)
        return self.but(
            closed=booked(self.closed, ((TimeType.ROLLBACK, lost),)),
            closed_chips=booked(self.closed_chips, ((TimeType.ROLLBACK, chip_ms),)),
            unsettled=(),
        )

    def leave_steps(self, at_ms: int, kind: TimeType | None = None) -> Ledger:
        """Close whatever is open at ``at_ms``: step time as ``kind``, or as a step's rest."""
        if not self.is_training:
            return self.advance(at_ms)
        if self.unseen:  # nobody can say how much of it was of use
            return self.book(at_ms, TimeType.UNATTRIBUTED)
        if kind is not None:
            return self.book(at_ms, kind)
        return self.close_steps(at_ms, Segment(self.last_step, self.last_step))


def _generation_started(ledger: Ledger, seen: Observation) -> Ledger:
    generation = int(seen.data["generation"])
    if generation == ledger.generation:  # a new coordinator has adopted the running world
        return ledger.advance(seen.at_ms)
    # A world that ended unseen: nobody can say when, so no type is claimed for its last interval.
    ledger = ledger.leave_steps(seen.at_ms, TimeType.UNATTRIBUTED)
    slices = seen.data.get("slices")
    return ledger.but(
        generation=generation,
        slices=len(slices) if isinstance(slices, list) else 0,
        wanted_slices=int(seen.data.get("wantedSlices", 0)),
        phase=Phase.STARTING,
        stopping=False,
        suspended=False,
        bound=True,
        complete=True,
        backoff_until_ms=0,
        unseen=False,
    )


def _pods_running(ledger: Ledger, seen: Observation) -> Ledger:
    return _generation_started(ledger, seen).but(phase=Phase.TRAIN, unseen=True)


def _attempt_failed(ledger: Ledger, seen: Observation) -> Ledger:
    onset_ms = min(int(seen.data["onsetAtMs"]), seen.at_ms)
    kind = TimeType.DETECTION if ledger.generation else ledger.type_now
    ledger = ledger.leave_steps(onset_ms, TimeType.UNATTRIBUTED).book(seen.at_ms, kind)
    return ledger.but(generation=0, stopping=True)


def _phase(ledger: Ledger, seen: Observation) -> Ledger:
    if not ledger.generation or int(seen.data["generation"]) != ledger.generation:
        return ledger.advance(seen.at_ms)
    return ledger.leave_steps(seen.at_ms).but(phase=phase_of(seen.data["phase"]))


def _restored(ledger: Ledger, seen: Observation) -> Ledger:
    generation = int(seen.data["generation"])
    ledger = ledger.advance(seen.at_ms)
    if generation <= ledger.restored_generation:
        return ledger
    step = int(seen.data["step"])
    ledger = ledger.settle(step).roll_back()
    return ledger.but(restored_generation=generation, last_step=step)


def _progress(ledger: Ledger, seen: Observation) -> Ledger:
    if not ledger.generation or int(seen.data["generation"]) != ledger.generation:
        return ledger.advance(seen.at_ms)
    ended_ms = min(int(seen.data["endedAtMs"]), seen.at_ms)
    last = int(seen.data["lastStep"])
    if not ledger.is_training:  # the first step closed before its phase was reported
        ledger = ledger.advance(ended_ms)
        return ledger.but(phase=Phase.TRAIN, last_step=max(ledger.last_step, last))
    segment = Segment(
        int(seen.data["firstStep"]),
        last,
        input_wait_ms=int(seen.data.get("inputWaitMs", 0)),
        checkpoint_stall_ms=int(seen.data.get("saveBlockedMs", 0)),
    )
    return ledger.close_steps(ended_ms, segment)


def _committed(ledger: Ledger, seen: Observation) -> Ledger:
    step = int(seen.data["step"])
    ledger = ledger.advance(seen.at_ms).settle(step)
    return ledger.but(committed_step=max(ledger.committed_step, step))


def _loss(ledger: Ledger, seen: Observation) -> Ledger:
    if not ledger.generation:
        return ledger.advance(seen.at_ms)
    onset_ms = min(int(seen.data["onsetAtMs"]), seen.at_ms)
    detected_ms = min(int(seen.data.get("detectedAtMs", seen.at_ms)), seen.at_ms)
    ledger = ledger.leave_steps(onset_ms, TimeType.ROLLBACK)
    ledger = ledger.but(generation=0, stopping=True)
    return ledger.book(detected_ms, TimeType.DETECTION).book(seen.at_ms, TimeType.TEARDOWN)


def _left(ledger: Ledger, seen: Observation) -> Ledger:
    """All have saved and left for a larger world: the wait for the save is a save's."""
    if not ledger.generation:
        return ledger.advance(seen.at_ms)
    left_ms = min(int(seen.data["leftAtMs"]), seen.at_ms)
    ledger = ledger.leave_steps(left_ms, TimeType.CHECKPOINT_STALL)
    return ledger.but(generation=0, stopping=True).book(seen.at_ms, TimeType.TEARDOWN)


def _stop(ledger: Ledger, seen: Observation) -> Ledger:
    return ledger.leave_steps(seen.at_ms).but(generation=0, stopping=True)


def _paused(**why: bool) -> Callable[[Ledger, Observation], Ledger]:
    return lambda ledger, seen: ledger.leave_steps(seen.at_ms, TimeType.ROLLBACK).but(
        **why, **_NO_PODS
    )


def _attempt_started(ledger: Ledger, seen: Observation) -> Ledger:
    kind = TimeType.TEARDOWN if ledger.leaving else TimeType.UNATTRIBUTED
    ledger = ledger.leave_steps(seen.at_ms, kind)
    return ledger.but(restored_generation=0, leaving=False, **_NO_PODS)


def _ended(ledger: Ledger, seen: Observation) -> Ledger:
    if ledger.is_training and ledger.unseen and seen.kind is FactKind.SUCCEEDED:
        ledger = ledger.book(seen.at_ms, TimeType.PRODUCTIVE)
    ledger = ledger.leave_steps(seen.at_ms)
    if seen.kind is FactKind.SUCCEEDED:  # nothing was lost, whether or not it was ever saved
        ledger = ledger.settle(max((s.last_step for s in ledger.unsettled), default=0))
    return ledger.roll_back().but(ended=True, generation=0)


def _setter(**changes: Any) -> Callable[[Ledger, Observation], Ledger]:
    return lambda ledger, seen: ledger.advance(seen.at_ms).but(**changes)


def _backoff(ledger: Ledger, seen: Observation) -> Ledger:
    return ledger.advance(seen.at_ms).but(backoff_until_ms=int(seen.data["untilAtMs"]))


def _chips_held(ledger: Ledger, seen: Observation) -> Ledger:
    ledger = ledger.advance(seen.at_ms)
    return ledger.but(chips=ledger.chips.hold(int(seen.data["chips"]), seen.at_ms))


_NO_PODS: dict[str, Any] = {
    "generation": 0,
    "stopping": False,
    "bound": False,
    "complete": False,
    "backoff_until_ms": 0,
}
_HANDLERS: dict[EventKind | FactKind, Callable[[Ledger, Observation], Ledger]] = {
    EventKind.MEMBER_LEFT: _setter(complete=False),
    EventKind.MEMBERS_COMPLETE: _setter(bound=True, complete=True),
    EventKind.GENERATION_STARTED: _generation_started,
    EventKind.PHASE: _phase,
    EventKind.RESTORED: _restored,
    EventKind.PROGRESS: _progress,
    EventKind.COMMITTED: _committed,
    EventKind.LOSS: _loss,
    EventKind.GENERATION_LEFT: _left,
    EventKind.GENERATION_STOPPED: _setter(stopping=False),
    EventKind.BACKOFF: _backoff,
    EventKind.FINISHED: _stop,
    EventKind.GAVE_UP: _stop,
    FactKind.ATTEMPT_STARTED: _attempt_started,
    FactKind.ATTEMPT_FAILED: _attempt_failed,
    # a step of the next attempt may take another time
    FactKind.ATTEMPT_LEFT: _setter(leaving=True, full_step_ms=0.0),
    FactKind.SUSPENDED: _paused(suspended=True),
    FactKind.RESUMED: _setter(suspended=False),
    FactKind.QUEUED: _paused(queued=True),
    FactKind.ADMITTED: _setter(queued=False),
    FactKind.CHIPS_HELD: _chips_held,
    FactKind.PODS_BOUND: _setter(bound=True),
    FactKind.PODS_UNBOUND: _setter(bound=False),
    FactKind.PODS_RUNNING: _pods_running,
    FactKind.SUCCEEDED: _ended,
    FactKind.FAILED: _ended,
}
