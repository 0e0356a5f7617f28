"""What counts as a right answer to a fault."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from faults import judgement
from faults.answers import ANSWERS
from faults.catalogue import CATALOGUE
from faults.diary import Line
from faults.scene import Place
from faults.training import course

_PLACE = Place(1, 0)
_GOODPUT = {"seconds": {"productive": 9.5, "detection": 0.4}, "unsettledSeconds": 0.1}
_BEFORE: dict[str, Any] = {
    "attempt": 1,
    "generation": 3,
    "restarts": 2,
    "goodput": {**_GOODPUT, "wallSeconds": 10.0},
    "incidents": [{"step": 10, "recoveredAfterSeconds": 1.0}],
    "checkpoint": {"step": 20},
    "budgets": {name: {"used": 1} for name in ("process", "infrastructure", "noProgress")},
}


def _after(**incident: Any) -> dict[str, Any]:
    """A status as it should be after a trainer was killed at ``_PLACE``."""
    after = copy.deepcopy(_BEFORE) | {"restarts": 3, "generation": 4}
    killed = {
        "cause": "process",
        "rung": "R0",
        "slice": 1,
        "worker": 0,
        "step": 27,
        "lostSteps": 7,
        "recoveredAfterSeconds": 1.2,
        "message": "killed by SIGKILL",
    }
    after["incidents"].append(killed | incident)
    after["budgets"]["process"]["used"] = 2
    return after


def test_a_right_answer() -> None:
    """Cause, rung, place, words, budget and times are as they should be."""
    assert judgement.of_status(ANSWERS["kill-trainer"], _PLACE, _BEFORE, _after()) == []


@pytest.mark.parametrize(
    "incident",
    [{"cause": "hang"}, {"rung": "R2"}, {"slice": 0}, {"worker": 1}, {"message": "exit code 1"}],
    ids=lambda incident: next(iter(incident)),
)
def test_an_incident_that_is_told_wrongly(incident: dict[str, Any]) -> None:
    """Each part of it counts."""
    [wrong] = judgement.of_status(ANSWERS["kill-trainer"], _PLACE, _BEFORE, _after(**incident))
    assert wrong.startswith("not Answer(")


def test_a_wrong_budget() -> None:
    """Only the answer's own is charged, once; restarts without progress are another matter."""
    after = _after()
    after["budgets"]["infrastructure"]["used"] = 2
    after["budgets"]["noProgress"]["used"] = 2
    [wrong] = judgement.of_status(ANSWERS["kill-trainer"], _PLACE, _BEFORE, after)
    assert wrong == "charged {'process': 1, 'infrastructure': 1} instead of {'process': 1}"


def test_times_that_do_not_add_up() -> None:
    """A millisecond is too much."""
    after = _after()
    after["goodput"]["wallSeconds"] = 10.001
    [wrong] = judgement.of_status(ANSWERS["kill-trainer"], _PLACE, _BEFORE, after)
    assert wrong.startswith("times do not add up")


def test_too_many_incidents() -> None:
    """One fault is one incident; and none, where training should go on."""
    after = _after() | {"restarts": 4}
    [wrong] = judgement.of_status(ANSWERS["kill-trainer"], _PLACE, _BEFORE, after)
    assert wrong.startswith("2 incidents instead of 1")
    [wrong] = judgement.of_status(ANSWERS["kill-coordinator"], _PLACE, _BEFORE, _after())
    assert wrong.startswith("1 incidents instead of 0")


def test_training_that_goes_on_starts_no_world() -> None:
    """Without a coordinator the world stays the same."""
    same = copy.deepcopy(_BEFORE)
    assert judgement.of_status(ANSWERS["kill-coordinator"], _PLACE, _BEFORE, same) == []
    after = same | {"generation": 4}
    [wrong] = judgement.of_status(ANSWERS["kill-coordinator"], _PLACE, _BEFORE, after)
    assert wrong == "generation 4 instead of 3"


def test_hosts_that_are_told_to_go_lose_nothing() -> None:
    """Everybody saves first."""
    told = {"cause": "preemption", "rung": "R2", "message": "SIGTERM"}
    after = _after(**told)
    after["budgets"] = copy.deepcopy(_BEFORE["budgets"])
    after["budgets"]["infrastructure"]["used"] = 2
    [wrong] = judgement.of_status(ANSWERS["delete-pod"], _PLACE, _BEFORE, after)
    assert wrong.startswith("steps are lost")
    after["incidents"][-1]["lostSteps"] = 0
    assert judgement.of_status(ANSWERS["delete-pod"], _PLACE, _BEFORE, after) == []


def test_calm_is_saved_since_the_last_incident() -> None:
    """A save from before it does not count, nor does an incident that is open."""
    assert judgement.is_calm(_BEFORE)
    assert not judgement.is_calm(_BEFORE | {"checkpoint": {"step": 10}})
    assert not judgement.is_calm(_BEFORE | {"incidents": [{"step": 10}]})
    assert not judgement.is_calm({})
    assert not judgement.has_recovered(_BEFORE, _BEFORE)
    assert judgement.has_recovered(_BEFORE, _after())


_DIARY = [Line(3, "began", 0), Line(3, "saved", 20), Line(4, "began", 20)]


def test_training_is_judged_by_its_own_words() -> None:
    """The step resumed from, and every loss."""
    losses = course(30)
    assert judgement.of_training(_DIARY, losses, _BEFORE, _after()) == []
    [wrong] = judgement.of_training(_DIARY, losses, _BEFORE, _after(lostSteps=6))
    assert wrong.startswith("resumed at step 20")
    [wrong] = judgement.of_training(_DIARY, losses | {25: 0.5, 26: 0.5}, _BEFORE, _after())
    assert wrong == "2 losses are not the uninterrupted run's, first of step 25"
    older = [*_DIARY[:2], Line(4, "began", 10)]
    assert "step 20 was saved" in judgement.of_training(older, losses, _BEFORE, _after())[0]


def test_answers_are_of_the_catalogue() -> None:
    """A soak draws from these."""
    assert ANSWERS.keys() <= CATALOGUE.keys()
