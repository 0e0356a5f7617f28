"""What Kueue's Workload says, as Kueue 0.16 writes it."""

from __future__ import annotations

from typing import Any

import pytest

from tpujob_operator.core.quota import Wait, wait_of

_RESERVED = ("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue flex")
_REFUSED = "The workload is deactivated due to Admission check(s): flex, were rejected"


def workload(
    *conditions: tuple[str, str, str, str],
    check: tuple[str, str] | None = None,
    active: bool = True,
) -> dict[str, Any]:
    """A Workload with conditions and at most one admission check."""
    keys = ("type", "status", "reason", "message")
    status: dict[str, Any] = {
        "conditions": [dict(zip(keys, item, strict=True)) for item in conditions]
    }
    if check:
        status["admissionChecks"] = [{"name": "flex", "state": check[0], "message": check[1]}]
    return {"spec": {"active": active}, "status": status}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"spec": {}}, "nothing yet"),
        (workload(), "nothing yet"),
        (workload(("QuotaReserved", "False", "Pending", "no chips")), "no chips"),
        (workload(("QuotaReserved", "False", "Pending", "")), "Pending"),
        (workload(_RESERVED), "nothing yet"),
        (workload(_RESERVED, check=("Ready", "all there")), "nothing yet"),
    ],
)
def test_quota(said: dict[str, Any], words: str) -> None:
    """Why there is none, if it says so."""
    assert wait_of(said) == Wait(words)


@pytest.mark.parametrize(
    ("message", "words"),
    [("", "admission check flex is Pending"), ("noon", "admission check flex is Pending: noon")],
)
def test_a_check_that_is_open_is_told(message: str, words: str) -> None:
    """A job with its quota may wait for the nodes, for hours."""
    said = workload(_RESERVED, check=("Pending", message))
    assert wait_of(said).words == f"Quota reserved in ClusterQueue flex; {words}"


def test_an_eviction_is_told_before_its_quota_is_gone() -> None:
    """Kueue suspends the JobSet first."""
    said = workload(_RESERVED, ("Evicted", "True", "Preempted", "for a more urgent one"))
    assert wait_of(said).words == "for a more urgent one"


@pytest.mark.parametrize(
    ("reason", "advice"), [("DeactivatedDueToAdmissionCheck", True), ("Deactivated", False)]
)
def test_who_is_refused_is_told_what_to_do(*, reason: str, advice: bool) -> None:
    """Kueue does not try again by itself; what an administrator has stopped is his."""
    said = workload(("Evicted", "True", reason, _REFUSED), active=False)
    wait = wait_of(said)
    assert wait.words.startswith(_REFUSED)
    assert ("suspend and resume" in wait.words) is wait.is_refused is advice
