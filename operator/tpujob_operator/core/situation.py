"""A decision in the making: the snapshot, and what the policies have concluded so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from tpujob_agent.protocol import Event
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.core.history import History
from tpujob_operator.core.memory import Memory
from tpujob_operator.core.observations import Fact, FactKind
from tpujob_operator.core.plan import Action, Note
from tpujob_operator.core.snapshot import Snapshot
from tpujob_operator.core.views import JobSetView


class Verdict(NamedTuple):
    """What a policy says about one condition."""

    is_true: bool
    reason: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What one policy concludes; an empty outcome says nothing."""

    actions: tuple[Action, ...] = ()
    facts: tuple[Fact | Event, ...] = ()
    verdicts: Mapping[ConditionType, Verdict] = dataclasses.field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    memory: Memory | None = None
    attempt: int | None = None
    requeue_after_s: float | None = None
    is_final: bool = False  # later policies are not asked
    keeps_status: bool = False  # the status stays as it is


NOTHING = Outcome()


@dataclasses.dataclass(frozen=True)
class Situation:
    """What the next policy is asked about."""

    snapshot: Snapshot
    history: History
    memory: Memory
    now_ms: int
    attempt: int
    actions: tuple[Action, ...] = ()
    verdicts: Mapping[ConditionType, Verdict] = dataclasses.field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    requeue_after_s: float | None = None
    is_final: bool = False
    keeps_status: bool = False

    @property
    def job(self) -> TPUTrainingJob:
        """The valid job; policies after the validation may rely on it."""
        assert self.snapshot.job is not None
        return self.snapshot.job

    @property
    def jobset(self) -> JobSetView | None:
        """The JobSet of the current attempt; nothing if this pass begins a new attempt."""
        return self.snapshot.jobset if self.attempt == self.snapshot.attempt else None

    @property
    def hosts(self) -> int:
        """Hosts of all wanted slices."""
        return self.job.spec.slices * self.job.shape.hosts

    @property
    def is_ending(self) -> bool:
        """Whether the coordinator says that all trainers are done, or that it has given up."""
        return self.history.finished or bool(self.history.gave_up)

    def after(self, outcome: Outcome) -> Situation:
        """The situation with one policy's conclusions added."""
        history = self.history
        for fact in outcome.facts:
            history = history.apply(fact)
        return dataclasses.replace(
            self,
            history=history,
            memory=outcome.memory or self.memory,
            attempt=self.attempt if outcome.attempt is None else outcome.attempt,
            actions=(*self.actions, *outcome.actions),
            verdicts={**self.verdicts, **outcome.verdicts},
            notes=(*self.notes, *outcome.notes),
            requeue_after_s=earliest(self.requeue_after_s, outcome.requeue_after_s),
            is_final=outcome.is_final,
            keeps_status=self.keeps_status or outcome.keeps_status,
        )


def earliest(*delays_s: float | None) -> float | None:
    """The shortest of the delays that are given."""
    given = [delay for delay in delays_s if delay is not None]
    return min(given) if given else None


def fact(situation: Situation, kind: FactKind, **data: int) -> Fact:
    """A fact that is observed now."""
    return Fact(situation.now_ms, kind, data)
