"""What a Workload of Kueue says of a JobSet that waits."""

from collections.abc import Mapping
from typing import Any

_NOTHING = "nothing yet"
_REJECTED = "DeactivatedDueToAdmissionCheck"
#: Nobody else brings it back: Kueue keeps the refused request, and reads it again.
_ADVICE = " (suspend and resume the job, and it asks anew)"


def why_waiting(workload: Mapping[str, Any]) -> str:
    """Kueue's own words, and what to do where it has given up."""
    status = workload.get("status", {})
    said = {item["type"]: item for item in status.get("conditions") or ()}
    reserved, evicted = said.get("QuotaReserved", {}), said.get("Evicted", {})
    if evicted.get("status") == "True" and workload["spec"].get("active") is False:
        return _message(evicted) + (_ADVICE if evicted.get("reason") == _REJECTED else "")
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
