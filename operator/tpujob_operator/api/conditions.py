"""Conditions as Kubernetes means them: pure helpers, time is an argument."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from tpujob_operator.api.base import rfc3339
from tpujob_operator.api.status import Condition, ConditionStatus


class ConditionType(enum.StrEnum):
    """Types of a job's conditions, in the order in which they are written."""

    PREFLIGHT = "Preflight"  # the step fits its chips; only where it was asked
    ADMITTED = "Admitted"  # the spec is valid and the job may have its objects
    READY = "Ready"  # every wanted host is ready
    PROGRESSING = "Progressing"  # steps are being made
    RESTARTING = "Restarting"  # a fault is being recovered from
    DEGRADED = "Degraded"  # runs, but not as wanted
    STALLED = "Stalled"  # cannot go on without help
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


_ORDER = {name: position for position, name in enumerate(ConditionType)}
_MAX_MESSAGE = 32768


def set_condition(
    conditions: Iterable[Condition],
    kind: ConditionType,
    status: bool | ConditionStatus,
    reason: str,
    message: str = "",
    *,
    now_ms: int,
    observed_generation: int | None = None,
) -> tuple[Condition, ...]:
    """The conditions with one set; ``lastTransitionTime`` moves only when its status changes."""
    known = tuple(conditions)
    value = _status(status)
    old = find_condition(known, kind)
    changed = old is None or old.status is not value
    new = Condition(
        type=kind,
        status=value,
        reason=reason,
        message=message[:_MAX_MESSAGE],
        last_transition_time=rfc3339(now_ms)
        if old is None or changed
        else old.last_transition_time,
        observed_generation=observed_generation,
    )
    others = [condition for condition in known if condition.type != kind]
    return tuple(sorted([*others, new], key=lambda c: (_rank(c.type), c.type)))


def find_condition(conditions: Iterable[Condition], kind: ConditionType) -> Condition | None:
    """The condition of a type, if there is one."""
    return next((condition for condition in conditions if condition.type == kind), None)


def is_true(conditions: Iterable[Condition], kind: ConditionType) -> bool:
    """Whether the condition of a type is there and True."""
    found = find_condition(conditions, kind)
    return found is not None and found.status is ConditionStatus.TRUE


def is_finished(conditions: Iterable[Condition]) -> bool:
    """Whether the job has succeeded or failed, for good."""
    known = tuple(conditions)
    return is_true(known, ConditionType.SUCCEEDED) or is_true(known, ConditionType.FAILED)


def _status(status: bool | ConditionStatus) -> ConditionStatus:
    if isinstance(status, ConditionStatus):
        return status
    return ConditionStatus.TRUE if status else ConditionStatus.FALSE


def _rank(kind: str) -> int:
    known = [*ConditionType]
    return _ORDER[ConditionType(kind)] if kind in known else len(known)
