"""Statuses that change little: for a job whose whole status cannot be made or cannot be stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpujob_operator.api import reasons
from tpujob_operator.api.base import rfc3339
from tpujob_operator.api.conditions import ConditionType

Status = Mapping[str, Any]
_MESSAGE_LIMIT = 1024


def reduced(old: Status, new: Status, refusal: str, now_ms: int) -> dict[str, Any]:
    """The stored status with the attempt and conditions of one that the API server refuses.

    What is to be done about the job follows from them; the history is kept in memory meanwhile.
    """
    message = (
        f"The API server refuses the job's status: {refusal[:_MESSAGE_LIMIT]}. The job itself is "
        "looked after. Its incidents and times are not stored, and are lost when the operator "
        "restarts. Install the CRD of this release, and look at the admission policies for "
        "tputrainingjobs/status."
    )
    kept = {
        name: new[name] for name in ("attempt", "state", "conditions", "finishedAt") if name in new
    }
    status = {**old, **kept}
    return _with_condition(
        status, ConditionType.DEGRADED, reasons.STATUS_REFUSED, message, now_ms, since=old
    )


def failing(old: Status, error: str, now_ms: int) -> dict[str, Any]:
    """The stored status with a word about the operator's own failure; nothing else changes."""
    message = (
        f"The operator fails whenever it looks at the job ({error}). It does nothing about the "
        "job until that is mended; what runs goes on. Look at the operator's log, and report the "
        "error with its traceback. A changed spec, or another release of the operator, may help."
    )
    return _with_condition(
        old, ConditionType.STALLED, reasons.INTERNAL_ERROR, message, now_ms, since=old
    )


def _with_condition(
    status: Status, kind: ConditionType, reason: str, message: str, now_ms: int, *, since: Status
) -> dict[str, Any]:
    before = next((item for item in _conditions(since) if item.get("type") == kind.value), {})
    is_same = before.get("status") == "True"
    condition = {
        **before,
        "type": kind.value,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": before["lastTransitionTime"] if is_same else rfc3339(now_ms),
    }
    others = [item for item in _conditions(status) if item.get("type") != kind.value]
    return {**status, "conditions": [*others, condition]}


def _conditions(status: Status) -> list[Mapping[str, Any]]:
    return list(status.get("conditions") or ())
