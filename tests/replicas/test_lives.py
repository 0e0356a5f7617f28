"""What a life with a blow may end in besides what one without it ends in."""

from __future__ import annotations

import dataclasses

from tests.replicas.lives import allowed
from tests.sweep.compare import Reference
from tests.sweep.play import Outcome

_DEGRADED = "tputrainingjobs/j:.status.conditions[Degraded]"
_CALM = {f"{_DEGRADED}.status": "False", f"{_DEGRADED}.reason": "AsWanted"}
_MADE = {"jobs/j-1-slice-1": 2, "jobs/j-1-coordinator-0": 2, "jobsets/j-1": 1}
_DELETED = {"jobs/j-1-slice-1": 1, "jobs/j-1-coordinator-0": 1}
_WITHOUT = Outcome(
    state=dict(_CALM), made=_MADE, deleted=_DELETED, faults=(), is_hit=False, seconds=1.0
)


def _differences(life: str, outcome: Outcome) -> list[str]:
    return Reference(allowed(life, _WITHOUT)).differences(outcome)


def test_job_of_a_lost_pod_may_stay() -> None:
    """The Job controller was quicker than the other replica, for one Job or for both."""
    made = {**_MADE, "jobs/j-1-slice-1": 1}
    deleted = {"jobs/j-1-coordinator-0": 1}
    outcome = dataclasses.replace(_WITHOUT, made=made, deleted=deleted)
    assert _differences("lost-pods", _WITHOUT) == []
    assert _differences("lost-pods", outcome) == []
    assert _differences("suspended", outcome) == [
        "jobs/j-1-slice-1 was made 1 times, not 2",
        "jobs/j-1-slice-1 was deleted 0 times, not 1",
    ]


def test_second_jobset_is_seen() -> None:
    """Nothing else may be made once more."""
    outcome = dataclasses.replace(_WITHOUT, made={**_MADE, "jobsets/j-1": 2})
    assert _differences("lost-pods", outcome) == ["jobsets/j-1 was made 2 times, not 1"]


def test_silent_coordinator_may_be_told() -> None:
    """Only where there is one."""
    state = {f"{_DEGRADED}.status": "True", f"{_DEGRADED}.reason": "CoordinatorUnreachable"}
    outcome = dataclasses.replace(_WITHOUT, state=state)
    assert _differences("suspended", outcome) == []
    alone = dataclasses.replace(_WITHOUT, made={"jobsets/j-1": 1}, deleted={})
    assert Reference(allowed("recreated", alone)).state_differences(state, was_away=True) == [
        f"{_DEGRADED}.reason is 'CoordinatorUnreachable', not 'AsWanted'",
        f"{_DEGRADED}.status is 'True', not 'False'",
    ]
