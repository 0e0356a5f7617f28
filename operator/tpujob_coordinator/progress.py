"""A generation's progress, folded from its members' reports into timeline events."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tpujob_agent.protocol import EventKind, Phase, Report
from tpujob_coordinator.ending import is_success
from tpujob_coordinator.membership import Member, Place, World
from tpujob_coordinator.timeline import LossSeries

PROGRESS_INTERVAL_MS = 1_000

Entry = tuple[EventKind, dict[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Totals:
    """Counters of this generation; waits of the slowest member, as steps run in lock-step."""

    tokens: int = 0
    input_wait_ms: int = 0
    save_blocked_ms: int = 0

    def with_report(self, report: Report) -> Totals:
        """The larger of each."""
        return Totals(
            max(self.tokens, report.tokens),
            max(self.input_wait_ms, report.input_wait_ms),
            max(self.save_blocked_ms, report.save_blocked_ms),
        )


class Progress:
    """What a running generation has reached, and what the timeline has been told of it.

    A step that any member has finished is finished: its result needs all of them.
    """

    def __init__(self, world: World, pace: float = 0.0) -> None:
        """Begin with nothing.

        Args:
            world: that trains.
            pace: steps a millisecond of the world before it, if there was one.
        """
        self._world, self._pace_before = world, pace
        self._phase: Phase | None = None
        self._restored: dict[Place, int] = {}
        self._is_restored_told = False
        self.finished: set[Place] = set()  # members whose trainer has exited 0
        self._phases: dict[Place, Phase] = {}  # of the members whose program tells them
        self._counts = Counter({Phase.STARTING: len(world.places)})
        self._since_ms: dict[Phase, int] = {}
        self.first_step, self._first_at_ms = 0, 0
        self.step, self._step_at_ms = 0, 0
        self._told_step = 0
        self._told_at_ms = 0  # when the last PROGRESS was appended
        self._totals, self._told_totals = Totals(), Totals()
        self.committed_step, self._committed_at_ms = 0, 0
        self._told_committed = 0
        self._flops_per_token = 0  # 0: not told
        self._cost: dict[str, int] = {}  # of the newest commit, if told

    @property
    def phase(self) -> Phase | None:
        """The world's phase, as the timeline was told."""
        return self._phase

    @property
    def restored_step(self) -> int | None:
        """The step from which all members go on; None: not all have said so."""
        if len(self._restored) < len(self._world.places):
            return None
        return min(self._restored.values())

    @property
    def pace(self) -> float:
        """Steps a millisecond; of the world before, as long as this one's is not known."""
        spent_ms = self._step_at_ms - self._first_at_ms
        return (self.step - self.first_step) / spent_ms if spent_ms > 0 else self._pace_before

    def steps_in(self, span_ms: int, now_ms: int) -> float:
        """Steps that a span of time takes at the pace so far, and those not reported yet."""
        unreported_ms = max(0, now_ms - self._step_at_ms) if self.step else 0
        return self.pace * (span_ms + unreported_ms)

    def take(self, member: Member, report: Report, now_ms: int) -> None:
        """Fold in one report of this generation."""
        if is_success(report):
            self.finished.add(member.place)
            self._enter(member, Phase.FINISHING, report.exited_at_ms, now_ms)
        elif report.phase_at_ms:
            self._enter(member, report.phase, report.phase_at_ms, now_ms)
        if report.restored_step >= 0:
            self._restored[member.place] = report.restored_step
        # A step that is not finished yet is no first step, whatever a program says.
        if 0 < report.first_step <= report.step and not self.first_step:
            self.first_step = report.first_step
            self._first_at_ms = member.to_our_clock(report.first_step_at_ms, now_ms)
        if report.step > self.step:
            self.step = report.step
            self._step_at_ms = member.to_our_clock(report.step_at_ms, now_ms)
        if report.committed_step > self.committed_step:
            self.committed_step = report.committed_step
            self._committed_at_ms = member.to_our_clock(report.committed_at_ms, now_ms)
            self._cost = _cost_of_commit(report)
        self._totals = self._totals.with_report(report)
        self._flops_per_token = max(self._flops_per_token, report.flops_per_token)

    def _enter(self, member: Member, phase: Phase, at_ms: int, now_ms: int) -> None:
        """Keep count of phases: with thousands of members, looking at each would be slow."""
        known = self._phases.get(member.place)
        if phase is known:
            return
        self._counts[known or Phase.STARTING] -= 1
        self._counts[phase] += 1
        self._phases[member.place] = phase
        since_ms = member.to_our_clock(at_ms, now_ms)
        self._since_ms[phase] = max(since_ms, self._since_ms.get(phase, 0))

    def adopted(self) -> None:
        """The operator may have read all this from the previous coordinator: go on from here."""
        self._is_restored_told = False
        self._told_step = max(0, self.step - 1) if self.step else 0
        self._told_totals = self._totals

    def entries(self, now_ms: int, losses: LossSeries, *, is_last: bool) -> Iterator[Entry]:
        """What the timeline does not know yet, in the order in which it happened."""
        yield from self._restored_entry()
        phase, since_ms = self._least_advanced(now_ms)
        if phase is not self._phase:
            # Steps belong to the phase that ends here, not to the one that begins.
            if self._phase is Phase.TRAIN:
                yield from self._progress_entries(now_ms, losses, at_once=True)
            yield self._phase_entry(phase, since_ms)
        has_commit = self.committed_step > self._told_committed
        yield from self._progress_entries(now_ms, losses, at_once=is_last or has_commit)
        if has_commit:
            self._told_committed = self.committed_step
            data = {"step": self.committed_step, "committedAtMs": self._committed_at_ms}
            yield EventKind.COMMITTED, data | self._cost

    def _restored_entry(self) -> Iterator[Entry]:
        is_complete = len(self._restored) == len(self._world.places)
        if self._is_restored_told or not (is_complete or self.first_step):
            return
        # A program that does not say what it restored goes on before its first step.
        step = min(self._restored.values(), default=max(0, self.first_step - 1))
        self._is_restored_told = True
        yield EventKind.RESTORED, {"generation": self._world.generation, "step": step}

    def _phase_entry(self, phase: Phase, since_ms: int) -> Entry:
        self._phase = phase
        generation = self._world.generation
        data = {"generation": generation, "phase": phase.value, "sinceAtMs": since_ms}
        return EventKind.PHASE, data

    def _least_advanced(self, now_ms: int) -> tuple[Phase, int]:
        """The world's phase and since when."""
        least = next(phase for phase in Phase if self._counts[phase])
        if self.step and least.order < Phase.TRAIN.order and not self._are_phases_told:
            return Phase.TRAIN, self._first_at_ms
        return least, self._since_ms.get(least, now_ms)

    @property
    def _are_phases_told(self) -> bool:
        """Whether every member's program tells its phases: a log pattern may be on one only."""
        return len(self._phases) == len(self._world.places)

    def _progress_entries(
        self, now_ms: int, losses: LossSeries, *, at_once: bool
    ) -> Iterator[Entry]:
        if not self.first_step:
            return
        if not self._told_step:  # cuts the first step, however long ago it was
            # Its share of the tokens: all steps of a program take about as many. A program that
            # contradicts itself may name a first step beyond the newest one.
            steps = max(1, self.step - self.first_step + 1)
            begun = Totals(tokens=self._totals.tokens // steps)
            yield self._told(self.first_step, self.first_step, self._first_at_ms, begun, losses)
            self._told_at_ms = now_ms
        if self.step <= self._told_step:
            return
        if at_once or now_ms - self._told_at_ms >= PROGRESS_INTERVAL_MS:
            first = self._told_step + 1
            yield self._told(first, self.step, self._step_at_ms, self._totals, losses)
            self._told_at_ms = now_ms

    def _told(
        self, first: int, last: int, ended_at_ms: int, totals: Totals, losses: LossSeries
    ) -> Entry:
        told = self._told_totals
        self._told_step, self._told_totals = last, totals
        flops = {"flopsPerToken": self._flops_per_token} if self._flops_per_token else {}
        return EventKind.PROGRESS, flops | {
            "generation": self._world.generation,
            "firstStep": first,
            "lastStep": last,
            "endedAtMs": ended_at_ms,
            "inputWaitMs": totals.input_wait_ms - told.input_wait_ms,
            "saveBlockedMs": totals.save_blocked_ms - told.save_blocked_ms,
            "tokens": totals.tokens - told.tokens,
            "loss": losses.up_to(last),
        }


def _cost_of_commit(report: Report) -> dict[str, int]:
    if report.commit_blocked_ms < 0 or report.commit_lag_ms < 0:
        return {}
    return {"blockedMs": report.commit_blocked_ms, "lagMs": report.commit_lag_ms}
