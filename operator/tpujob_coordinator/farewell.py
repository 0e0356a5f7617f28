"""A host that is about to go: what is done in the time that is left.

If the program obeys, everybody saves at one step and exits, so that no work is lost.
Otherwise the world ends at once, because the steps until the end would be lost anyway
and the host's replacement waits for nothing but its end.
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
_LEAST_STEPS = 2
_REASON = "its pod is being deleted or preempted (SIGTERM)"


@dataclasses.dataclass(slots=True)
class Farewell:
    """A save that leaving members wait for; everybody exits after it."""

    save: Save  # for everybody
    deadline_ms: int
    leaver: Member  # the first
    gone: dict[Place, int] = dataclasses.field(default_factory=dict)  # saved, and left when

    def end(self, now_ms: int) -> End:
        """Whose leaving ends the generation: when the first has saved and left, or now."""
        return end_of_leaver(self.leaver, min(self.gone.values(), default=now_ms))

    def is_over(self, places: Iterable[Place], now_ms: int) -> bool:
        """Whether all have left, or none is waited for any more."""
        return now_ms >= self.deadline_ms or self.gone.keys() >= set(places)

    def join(self, grace_ms: int, now_ms: int) -> None:
        """One more member has to go."""
        self.deadline_ms = min(self.deadline_ms, now_ms + grace_ms - LAST_MS)


def end_of_leaver(member: Member, at_ms: int) -> End:
    """The end of a member whose pod is told to go."""
    return end_of_member(member, Cause.PREEMPTION, _REASON, at_ms)


def begin(
    world: World,
    progress: Progress,
    members: Mapping[Place, Member],
    leaver: Member,
    *,
    grace_ms: int,
    now_ms: int,
) -> Farewell | None:
    """The farewell that everybody can still make; None where it would be in vain."""
    leader = members.get(world.places[0])
    report = leader.report if leader else None
    obeys = report is not None and report.obeys_saves and progress.phase is Phase.TRAIN
    if not obeys or grace_ms <= LAST_MS:
        return None
    ahead = max(_LEAST_STEPS, round(progress.steps_in(_DELIVERY_MS, now_ms)))
    save = Save(world.generation, progress.step + ahead, then_leave=True)
    return Farewell(save, now_ms + grace_ms - LAST_MS, leaver)
