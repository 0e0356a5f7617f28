"""A sample of ``make replicas``, with a short Lease: one kill and one freeze in a recovery."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from localcluster.cluster import Cluster
from tests.replicas.blows import Blow, draw
from tests.replicas.duo import SHORT_LEASE
from tests.replicas.play import House, Played
from tests.replicas.watchman import Watchman
from tests.sweep.compare import Reference
from tests.sweep.play import theatre

pytestmark = pytest.mark.control_plane
_LIFE = "recreated"
_FREEZE_S = 6.0
_TRIES = 5


@pytest.fixture(scope="module")
def house(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Where lives are played."""
    with theatre(control_plane, tmp_path_factory.mktemp("replicas")) as made:
        yield House(made, Watchman(made.census), SHORT_LEASE)


@pytest.fixture(scope="module")
def without(house: House) -> Played:
    """A life without a blow."""
    played = house.play(_LIFE, None, None)
    assert played.outcome.faults == ()
    return played


@pytest.mark.parametrize("kind", ["kill", "freeze"])
def test_job_outlives_its_leader(house: House, without: Played, kind: str) -> None:
    """Its end state and its objects are as without the blow; only who holds the Lease writes."""
    reference = Reference([without.outcome])
    writes = {_LIFE: without.writes}
    blows = (draw(kind, writes, number, 0, _FREEZE_S) for number in range(_TRIES))
    played = next(filter(_is_hit, (house.play(_LIFE, blow, reference) for blow in blows)))
    assert reference.differences(played.outcome) == []
    assert played.lease_s is not None


def _is_hit(played: Played) -> bool:
    return played.outcome.is_hit


def test_blow_is_drawn_again_from_its_number(without: Played) -> None:
    """The same seed and number hit the same write; another number another one, in the end."""
    writes = {_LIFE: without.writes}
    drawn: list[Blow] = [draw("kill", writes, number, 7, 0.0) for number in range(20)]
    assert drawn == [draw("kill", writes, number, 7, 0.0) for number in range(20)]
    assert len({dataclasses.replace(blow, number=0) for blow in drawn}) > 1
