"""Conditions behave as Kubernetes defines them."""

from __future__ import annotations

from tpujob_operator.api import reasons
from tpujob_operator.api.conditions import (
    ConditionType,
    find_condition,
    is_finished,
    is_true,
    set_condition,
)
from tpujob_operator.api.status import ConditionStatus


def test_transition_time_moves_with_the_status_only() -> None:
    """A new reason keeps lastTransitionTime; a new status sets it."""
    first = set_condition((), ConditionType.READY, False, reasons.HOSTS_MISSING, now_ms=1000)
    second = set_condition(first, ConditionType.READY, False, reasons.STARTING, now_ms=2000)
    third = set_condition(second, ConditionType.READY, True, reasons.TRAINING, now_ms=3000)
    times = [conditions[0].last_transition_time for conditions in (first, second, third)]
    assert times[0] == times[1] != times[2]
    assert second[0].reason == reasons.STARTING


def test_conditions_are_unique_and_ordered() -> None:
    """A type stands once, in the documented order, whatever the order of setting."""
    found = set_condition((), ConditionType.FAILED, False, reasons.RUNNING, now_ms=1)
    found = set_condition(found, ConditionType.ADMITTED, True, reasons.ADMITTED, now_ms=1)
    found = set_condition(found, ConditionType.FAILED, True, reasons.BUDGET_SPENT, now_ms=2)
    assert [condition.type for condition in found] == ["Admitted", "Failed"]


def test_setting_the_same_again_changes_nothing() -> None:
    """The same condition at a later time is equal, so that nothing is written."""
    once = set_condition((), ConditionType.READY, True, "A", "m", now_ms=1, observed_generation=4)
    again = set_condition(
        once, ConditionType.READY, True, "A", "m", now_ms=9, observed_generation=4
    )
    assert again == once


def test_reading() -> None:
    """Absent and Unknown are not True; Succeeded and Failed end a job."""
    unknown = set_condition((), ConditionType.READY, ConditionStatus.UNKNOWN, "X", now_ms=1)
    assert not is_true(unknown, ConditionType.READY)
    assert find_condition(unknown, ConditionType.FAILED) is None
    assert not is_finished(unknown)
    done = set_condition(unknown, ConditionType.SUCCEEDED, True, reasons.COMPLETED, now_ms=1)
    assert is_finished(done)


def test_reasons_are_camel_case_and_unique() -> None:
    """Reasons fit Kubernetes' form, and no two constants share a value."""
    values = [value for name, value in vars(reasons).items() if name.isupper()]
    assert len(set(values)) == len(values)
    assert all(value.isalnum() and value[0].isupper() for value in values)
