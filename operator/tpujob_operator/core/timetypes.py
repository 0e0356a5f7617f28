"""The types a job's time is cut into: exhaustive and exclusive, so that they add up to wall time.

Every elementary interval of a job's life, from its creation to its terminal
condition, gets exactly one type. The order is the order of precedence where
several could apply.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping

from tpujob_agent.protocol import Phase
from tpujob_operator.core.stored import table, whole


class TimeType(enum.StrEnum):
    """One of the 18 types of time; ``productive`` is goodput, all others are badput."""

    TEARDOWN = "teardown"
    SUSPENDED = "suspended"
    QUEUED = "queued"
    BACKOFF = "backoff"
    PROVISIONING = "provisioning"
    IMAGE = "image"
    DETECTION = "detection"
    RUNTIME_INIT = "runtime_init"
    RESTORE = "restore"
    COMPILE = "compile"
    SETUP = "setup"
    ROLLBACK = "rollback"
    CHECKPOINT_STALL = "checkpoint_stall"
    INPUT_WAIT = "input_wait"
    DECLARED = "declared"
    DEGRADED = "degraded"
    PRODUCTIVE = "productive"
    UNATTRIBUTED = "unattributed"

    @classmethod
    def _missing_(cls, value: object) -> TimeType | None:
        """Types of a newer operator: their time is kept, no rule is known for it."""
        return cls.UNATTRIBUTED if isinstance(value, str) else None


#: What time is while a world is in a phase; in the others it takes steps.
TYPE_OF_PHASE: dict[Phase, TimeType] = {
    Phase.STARTING: TimeType.RUNTIME_INIT,
    Phase.INIT: TimeType.RUNTIME_INIT,
    Phase.RESTORE: TimeType.RESTORE,
    Phase.COMPILE: TimeType.COMPILE,
    Phase.SETUP: TimeType.SETUP,
    Phase.FINISHING: TimeType.CHECKPOINT_STALL,
}


DESCRIPTIONS: dict[TimeType, str] = {
    TimeType.TEARDOWN: "failure verdict, drain or suspension until the last old process is gone",
    TimeType.SUSPENDED: "suspended by the user or an administrator",
    TimeType.QUEUED: "waiting for quota, or for a preflight",
    TimeType.BACKOFF: "waiting by policy before a restart",
    TimeType.PROVISIONING: "admitted, until all pods are bound to nodes",
    TimeType.IMAGE: "pods bound, until every agent has reported: pulls and container starts",
    TimeType.DETECTION: "a fault has happened and is not noticed yet",
    TimeType.RUNTIME_INIT: "processes start, import, find each other and their devices",
    TimeType.RESTORE: "reading a checkpoint",
    TimeType.COMPILE: "tracing and compiling the step",
    TimeType.SETUP: "the rest before the first step",
    TimeType.ROLLBACK: "steps that no committed checkpoint covered when they were lost",
    TimeType.CHECKPOINT_STALL: "the training loop is held up by a save",
    TimeType.INPUT_WAIT: "the training loop waits for data",
    TimeType.DECLARED: "evaluation and other time the program declares",
    TimeType.DEGRADED: "settled step time above what the wanted number of slices takes",
    TimeType.PRODUCTIVE: "settled step time: covered by a committed checkpoint",
    TimeType.UNATTRIBUTED: "no rule applies",
}


def amounts(raw: object) -> dict[TimeType, int]:
    """Sums by type as they were stored.

    Raises:
        TypeError: one of them is no amount.
        ValueError: there is no such type.
    """
    return booked({}, ((TimeType(kind), whole(amount)) for kind, amount in table(raw).items()))


def booked(
    sums: Mapping[TimeType, int], more: Iterable[tuple[TimeType, int]]
) -> dict[TimeType, int]:
    """The sums by type after more of them, in any unit; a type without any is left out."""
    total = dict(sums)
    for kind, amount in more:
        if amount:
            total[kind] = total.get(kind, 0) + amount
    return total


@dataclasses.dataclass(frozen=True, slots=True)
class TimeView:
    """The ledger seen at one moment: types and unsettled time add up to wall time, exactly."""

    by_type_ms: Mapping[TimeType, int]
    unsettled_ms: int
    unsettled_productive_ms: int
    wall_ms: int
    chip_ms_by_type: Mapping[TimeType, int] = dataclasses.field(default_factory=dict)
    unsettled_chip_ms: int = 0

    @property
    def goodput_ratio(self) -> float:
        """Productive time, settled or not yet, divided by wall time."""
        productive = self.by_type_ms.get(TimeType.PRODUCTIVE, 0) + self.unsettled_productive_ms
        return productive / self.wall_ms if self.wall_ms else 0.0

    @property
    def chip_ms(self) -> int:
        """All time of all chips that were held."""
        return sum(self.chip_ms_by_type.values()) + self.unsettled_chip_ms
