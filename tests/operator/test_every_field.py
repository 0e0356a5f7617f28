"""A sample of ``make fields``: fields of jobs that run are changed, and changed back."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from tests.api.mutations import Case
from tests.fields.drawn import drawn
from tests.fields.stage import stage
from tests.fields.trial import ANSWERS, Actor, Result

pytestmark = pytest.mark.control_plane

_SAMPLE = int(os.environ.get("TPUJOB_TEST_EVERY_FIELD", "36"))
_AT_ONCE = 4


def test_a_change_has_an_effect_and_can_be_taken_back(
    control_plane: Cluster, namespace: str, tmp_path: Path
) -> None:
    """Refused at once, or answered; then the old spec makes the old children; never a traceback."""
    cases = drawn(_SAMPLE)
    with stage(control_plane, namespace, tmp_path) as made:

        def play(number: int) -> list[Result]:
            actor = Actor(made.world, f"c-{number}")
            return [actor.play(case) for case in _share(cases, number)]

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            results = [one for share in pool.map(play, range(_AT_ONCE)) for one in share]
        assert "Traceback" not in made.operator.life, made.operator.text
    assert not [result for result in results if result.problem]
    assert len(results) == len(cases)
    assert len([result for result in results if result.outcome in ANSWERS]) >= len(cases) // 5


def _share(cases: list[Case], number: int) -> list[Case]:
    return cases[number::_AT_ONCE]
