"""How long recoveries took, stage by stage: a pure fold into the buckets of a histogram."""

from __future__ import annotations

import bisect
import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from tpujob_agent.protocol import EventKind
from tpujob_operator.core.ledger import Ledger
from tpujob_operator.core.observations import FactKind, Observation
from tpujob_operator.core.stored import items, known_word, table, whole
from tpujob_operator.core.timetypes import TimeType, amounts

#: Upper bounds of the buckets; what is above the last one counts too. Few: each is a series of
#: every stage of every job.
BUCKETS_S = (2, 10, 60, 300, 1800)


class Stage(enum.StrEnum):
    """What a recovery consists of; ``total`` reaches from the fault to the next finished step."""

    DETECTION = "detection"
    REPLACEMENT = "replacement"
    START = "start"
    RESTORE = "restore"
    TOTAL = "total"


_TYPES: Mapping[Stage, tuple[TimeType, ...]] = {
    Stage.DETECTION: (TimeType.DETECTION,),
    Stage.REPLACEMENT: (
        TimeType.TEARDOWN,
        TimeType.BACKOFF,
        TimeType.QUEUED,
        TimeType.PROVISIONING,
        TimeType.IMAGE,
    ),
    Stage.START: (TimeType.RUNTIME_INIT, TimeType.COMPILE, TimeType.SETUP),
    Stage.RESTORE: (TimeType.RESTORE,),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Histogram:
    """Durations by bucket; the last count is of those above all bounds."""

    counts: tuple[int, ...] = (0,) * (len(BUCKETS_S) + 1)
    sum_ms: int = 0

    def observe(self, ms: int) -> Histogram:
        """The histogram with one more duration."""
        place = bisect.bisect_left(BUCKETS_S, ms / 1000)
        counts = tuple(count + (i == place) for i, count in enumerate(self.counts))
        return Histogram(counts, self.sum_ms + ms)


@dataclasses.dataclass(frozen=True, slots=True)
class Recoveries:
    """State of the fold."""

    stages: Mapping[Stage, Histogram] = dataclasses.field(default_factory=dict)
    onset_ms: int = 0  # of the fault that is being recovered from; 0: none
    before: Mapping[TimeType, int] = dataclasses.field(default_factory=dict)  # booked until then

    def apply(self, seen: Observation, before: Ledger, after: Ledger) -> Recoveries:
        """The recoveries after one observation that took the ledger from one state to another."""
        if seen.kind in (EventKind.LOSS, FactKind.ATTEMPT_FAILED):
            onset_ms = min(int(seen.data["onsetAtMs"]), seen.at_ms)
            return self if self.onset_ms else self._begun(onset_ms, before.closed)
        if seen.kind in (FactKind.SUSPENDED, FactKind.QUEUED):  # nobody waits for a step now
            return self._begun(0, {})
        if seen.kind is FactKind.PODS_RUNNING and self.onset_ms:  # nobody tells more
            return self._recovered(seen.at_ms, after)
        if seen.kind is EventKind.PROGRESS and self.onset_ms:
            return self._recovered(min(int(seen.data["endedAtMs"]), seen.at_ms), after)
        return self

    def _begun(self, onset_ms: int, booked: Mapping[TimeType, int]) -> Recoveries:
        return dataclasses.replace(self, onset_ms=onset_ms, before=dict(booked))

    def _recovered(self, ended_ms: int, ledger: Ledger) -> Recoveries:
        spent = {
            stage: sum(ledger.closed.get(kind, 0) - self.before.get(kind, 0) for kind in kinds)
            for stage, kinds in _TYPES.items()
        }
        spent[Stage.TOTAL] = max(0, ended_ms - self.onset_ms)
        stages = {
            stage: self.stages.get(stage, Histogram()).observe(ms) for stage, ms in spent.items()
        }
        return Recoveries(stages)

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which ``from_json`` makes equal recoveries."""
        return {
            "stages": {
                stage.value: [*histogram.counts, histogram.sum_ms]
                for stage, histogram in sorted(self.stages.items())
            },
            "onsetMs": self.onset_ms,
            "before": {kind.value: ms for kind, ms in sorted(self.before.items())},
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Recoveries:
        """Inverse of ``to_json``; what is missing, or is of other versions, takes its default."""
        return cls(
            stages={
                stage: Histogram(tuple(map(whole, values[:-1])), whole(values[-1]))
                for name, values in table(raw.get("stages", {})).items()
                if (stage := known_word(Stage, name, None))
                and len(items(values)) == len(BUCKETS_S) + 2
            },
            onset_ms=whole(raw.get("onsetMs", 0)),
            before=amounts(raw.get("before", {})),
        )
