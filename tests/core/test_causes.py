"""Every cause and every exit code of the contract is in every table that needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpujob_agent.protocol import (
    BUDGET_OF_CAUSE,
    Budget,
    Cause,
    ExitCode,
    ProcessState,
    Report,
)
from tpujob_coordinator.budgets import Budgets
from tpujob_coordinator.verdicts import judge
from tpujob_operator.api.status import Incident
from tpujob_operator.core.policies.progress import REASON_OF_CAUSE

PAGE = (Path(__file__).parents[2] / "docs" / "recovery.md").read_text(encoding="utf-8")
CAUSES = [cause for cause in Cause if cause is not Cause.UNKNOWN]
#: What ends a process without fault of its own.
_NO_FAULT = {ExitCode.DONE, ExitCode.PREEMPTED}


def test_every_cause_has_a_reason() -> None:
    """A status that tells of a loss is written whatever the loss was."""
    assert set(REASON_OF_CAUSE) == set(Cause)


def test_every_cause_has_a_budget() -> None:
    """The coordinator charges each loss; the one that it never tells has none."""
    assert set(BUDGET_OF_CAUSE) == set(CAUSES)


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_is_documented(cause: Cause) -> None:
    """In the status field that shows it, and in the page about recovery."""
    description = Incident.model_fields["cause"].description or ""
    assert cause.value in description
    assert f"`{cause.value}`" in PAGE


@pytest.mark.parametrize("code", [code for code in ExitCode if code not in _NO_FAULT])
def test_every_exit_code_is_judged(code: ExitCode) -> None:
    """None of the contract's codes counts as the user's own."""
    report = Report(1, ProcessState.EXITED, 1, exit_code=int(code))
    assert judge(report)[0] is not Cause.USER_ERROR
    assert f"exit code {code}" in PAGE


def test_an_outage_of_storage_spends_infrastructure_alone() -> None:
    """However long it lasts: without storage no job commits, which is not the job's fault."""
    budgets = Budgets({Budget.NO_PROGRESS: 2, Budget.INFRASTRUCTURE: -1}, {})
    for onset in range(20):
        budgets, verdict = budgets.charge(Cause.STORAGE, onset)
        assert verdict.spent is None
    assert budgets.used == {Budget.INFRASTRUCTURE: 20}
    assert verdict.backoff_ms > 0
