"""What a Workload of Kueue says of a JobSet that waits."""

import dataclasses
from collections.abc import Mapping
from typing import Any

_NOTHING = "nothing yet"
_REJECTED = "DeactivatedDueToAdmissionCheck"
#: Nobody else brings it back: Kueue keeps the refused request, and reads it again.
_ADVICE = " (suspend and resume the job, and it asks anew)"


@dataclasses.dataclass(frozen=True, slots=True)
class Wait:
    """Why a JobSet waits.

    Attributes:
        words: Kueue's own, and what to do where it has given up.
        is_refused: an admission check was refused for good, as when the nodes of a
            ProvisioningRequest are taken back; only another JobSet is given any.
    """

    words: str = ""
    is_refused: bool = False


def wait_of(workload: Mapping[str, Any]) -> Wait:
    """What a Workload tells of the wait."""
    evicted = _conditions(workload).get("Evicted", {})
    if evicted.get("status") == "True" and workload["spec"].get("active") is False:
        is_refused = evicted.get("reason") == _REJECTED
        return Wait(_message(evicted) + (_ADVICE if is_refused else ""), is_refused)
    return Wait(_why_waiting(workload))


def _conditions(workload: Mapping[str, Any]) -> dict[str, Any]:
    return {item["type"]: item for item in workload.get("status", {}).get("conditions") or ()}


def _why_waiting(workload: Mapping[str, Any]) -> str:
    status, said = workload.get("status", {}), _conditions(workload)
    reserved, evicted = said.get("QuotaReserved", {}), said.get("Evicted", {})
    if reserved.get("status") == "True" and evicted.get("status") == "True":
        return _message(evicted)  # its quota goes next
    checks = [_check(item) for item in status.get("admissionChecks") or () if _is_open(item)]
    if reserved.get("status") == "True" and not checks:
        return _NOTHING
    return "; ".join([_message(reserved), *checks])


def _message(condition: Mapping[str, Any]) -> str:
    return str(condition.get("message") or condition.get("reason") or _NOTHING)


def _is_open(check: Mapping[str, Any]) -> bool:
    return bool(check["state"] != "Ready")


def _check(check: Mapping[str, Any]) -> str:
    words = f"admission check {check['name']} is {check['state']}"
    return f"{words}: {check['message']}" if check.get("message") else words
