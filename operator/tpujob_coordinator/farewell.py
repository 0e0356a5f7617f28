"""Everybody saves at one step and exits: before a host goes, or for a larger world.

When a host goes and the program obeys, no work is lost by it. Otherwise the world ends
at once, because the steps until the end would be lost anyway and the host's replacement
waits for nothing but its end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from tpujob_agent.protocol import Cause, Phase, Save
from tpujob_coordinator.ending import end_of_member
from tpujob_coordinator.membership import Member, Place, World
from tpujob_coordinator.progress import Progress
from tpujob_coordinator.verdicts import End

#: Of the grace period: kept for ending the trainers, should the save not succeed.
LAST_MS = 5_000
#: An order takes this long to reach every trainer at worst; steps go on meanwhile.
_DELIVERY_MS = 1_500
#: A trainer that has not left so long after the first one has is stopped.
STRAGGLE_MS = 30_000
_LEAST_STEPS = 2
_REASON = "its pod is being deleted or preempted (SIGTERM)"


@dataclasses.dataclass(frozen=True, slots=True)
class Before:
    """What a job has reached with the worlds before the present one."""

    step: int = 0
    committed_step: int = 0
    obeyed: bool = False  # the program has looked at what was wished


@dataclasses.dataclass(slots=True)
class Farewell:
    """A save after which everybody exits; without a reason a larger world follows."""

    save: Save | None  # for everybody; None: it is not known yet whether there is one to make
    deadline_ms: int | None = None
    leaver: Member | None = None  # the first that has to go
    verdict: End | None = None  # on a member that shall go
    gone: dict[Place, int] = dataclasses.field(default_factory=dict)  # saved, and left when

    def end(self, now_ms: int) -> End | None:
        """Whose leaving ends the generation: when the first has saved and left, or now."""
        at_ms = min(self.gone.values(), default=now_ms)
        if self.leaver:
            return end_of_leaver(self.leaver, at_ms)
        return dataclasses.replace(self.verdict, at_ms=at_ms) if self.verdict else None

    @property
    def is_for_growth(self) -> bool:
        """Whether nobody has to go."""
        return self.leaver is None and self.verdict is None

    def is_over(self, places: Iterable[Place], now_ms: int) -> bool:
        """Whether all have left, or none is waited for any more."""
        is_late = self.deadline_ms is not None and now_ms >= self.deadline_ms
        return is_late or self.gone.keys() >= set(places)

    def join(self, leaver: Member, grace_ms: int, now_ms: int) -> None:
        """One more member has to go."""
        self.leaver = self.leaver or leaver
        self.wait_until(now_ms + grace_ms - LAST_MS)

    def left(self, place: Place, at_ms: int, now_ms: int) -> None:
        """A member has saved and left; the others have done so too, or are about to."""
        self.gone[place] = at_ms
        if self.leaver is None:
            self.wait_until(now_ms + STRAGGLE_MS)

    def wait_until(self, deadline_ms: int) -> None:
        """Not longer than this."""
        self.deadline_ms = min(self.deadline_ms or deadline_ms, deadline_ms)


def end_of_leaver(member: Member, at_ms: int) -> End:
    """The end of a member whose pod is told to go."""
    if notice := member.notice_at(at_ms):
        return end_of_member(member, notice.cause, f"{_REASON}: {notice.reason}", at_ms)
    return end_of_member(member, Cause.PREEMPTION, _REASON, at_ms)


def begin(
    world: World,
    progress: Progress,
    members: Mapping[Place, Member],
    leaver: Member,
    *,
    before: Before,
    grace_ms: int,
    now_ms: int,
) -> Farewell | None:
    """The farewell that everybody can still make; None where it would be in vain.

    Args:
        world: that trains, or is about to.
        progress: its.
        members: of the job.
        leaver: who has to go.
        before: what the job had reached.
        grace_ms: until the leaver is killed.
        now_ms: the time.
    """
    save = save_at_stake(world, progress, members, before, now_ms)
    is_alive = leaver.report is not None and leaver.report.generation == world.generation
    if grace_ms <= LAST_MS or not (save or (is_alive and is_in_doubt(progress, before))):
        return None
    return Farewell(save, now_ms + grace_ms - LAST_MS, leaver)


def save_at_stake(
    world: World,
    progress: Progress,
    members: Mapping[Place, Member],
    before: Before,
    now_ms: int,
) -> Save | None:
    """The save before everybody leaves; None: there is nothing to save, or nobody would obey.

    A world that has taken no step has something to lose where it has restored what only the
    memory of its pods holds. Otherwise its end is not to wait for its start.
    """
    if progress.phase is Phase.TRAIN:
        return save_ahead(world, progress, members, now_ms, then_leave=True)
    restored = progress.restored_step
    if restored is None or restored <= before.committed_step or not obeys(world, members):
        return None
    return Save(world.generation, restored + _ahead(progress, now_ms), then_leave=True)


def is_in_doubt(progress: Progress, before: Before) -> bool:
    """Whether it is not known yet what the world restores, and that may be nowhere else."""
    has_begun = progress.phase is Phase.TRAIN or progress.restored_step is not None
    return not has_begun and before.obeyed and before.step > before.committed_step


def save_ahead(
    world: World,
    progress: Progress,
    members: Mapping[Place, Member],
    now_ms: int,
    *,
    then_leave: bool,
) -> Save | None:
    """An order to save at a step that nobody has reached; None: nobody would obey."""
    if not obeys(world, members) or progress.phase is not Phase.TRAIN:
        return None
    return Save(world.generation, progress.step + _ahead(progress, now_ms), then_leave=then_leave)


def _ahead(progress: Progress, now_ms: int) -> int:
    """Steps until one that nobody will have reached when the order comes."""
    return max(_LEAST_STEPS, round(progress.steps_in(_DELIVERY_MS, now_ms)))


def obeys(world: World, members: Mapping[Place, Member]) -> bool:
    """Whether the program looks at what is wished; its leader says so."""
    leader = members.get(world.places[0])
    return bool(leader and leader.report and leader.report.obeys_saves)
