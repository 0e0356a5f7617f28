"""A sample of ``make sweep``: lives under one fault each end like lives without any."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from localcluster.cluster import Cluster
from tests.sweep.compare import Reference
from tests.sweep.lives import ELECTED, LIVES
from tests.sweep.plans import Plan, plans_for, sample
from tests.sweep.play import Theatre, theatre

pytestmark = pytest.mark.control_plane
_EACH = 1
_AT_ONCE = 3
_SEED = 1


@pytest.fixture(scope="module")
def stage(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    """Whoever serves lives."""
    with theatre(control_plane, tmp_path_factory.mktemp("sweep")) as made:
        yield made


@pytest.mark.parametrize("life", sorted({*LIVES} - ELECTED))
def test_lives_under_a_fault_end_like_those_without(stage: Theatre, life: str) -> None:
    """End state, and how often each object was made and deleted, are those of two lives before."""
    played = [stage.play(life, None, None) for _ in range(2)]
    assert [outcome.faults for outcome, _ in played] == [(), ()]
    reference = Reference([outcome for outcome, _ in played])

    def differences(plan: Plan) -> list[str]:
        return reference.differences(stage.play(life, plan, reference.is_settled)[0])

    plans = sample(plans_for(life, played[-1][1]), _EACH, _SEED)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = dict(zip([plan.id for plan in plans], pool.map(differences, plans), strict=True))
    assert {name: words for name, words in found.items() if words} == {}


def test_oracles_see_what_differs(stage: Theatre) -> None:
    """A state that lacks something, and a count that is off, are told."""
    outcome, _ = stage.play("recreated", None, None)
    reference = Reference([outcome])
    path = next(path for path in outcome.state if path.startswith("jobsets/"))
    state = {name: value for name, value in outcome.state.items() if name != path}
    made = {**outcome.made, "jobsets/j-1": 2}
    assert not reference.is_settled(state)
    assert reference.differences(dataclasses.replace(outcome, state=state, made=made)) == [
        f"{path} is '(absent)', not {str(outcome.state[path])!r}",
        "jobsets/j-1 was made 2 times, not 1",
    ]


def test_oracles_allow_what_nobody_can_know(stage: Theatre) -> None:
    """Node and words of a pod that went while there was no operator; not while there was one."""
    outcome, _ = stage.play("recreated", None, None)
    reference = Reference([outcome])
    incident = "tputrainingjobs/j:.status.incidents[1]"
    message = "a pod of j-2-slice-0 is gone: jobset failed"
    state = {**outcome.state, f"{incident}.message": message}
    del state[f"{incident}.node"]
    unseen = dataclasses.replace(outcome, state=state)
    assert len(reference.differences(unseen)) == 2
    assert reference.differences(dataclasses.replace(unseen, starts=2)) == []
    state = {**state, f"{incident}.cause": "node"}
    assert len(reference.differences(dataclasses.replace(unseen, state=state, starts=2))) == 1
