"""Worlds smaller than wanted, formed when waiting was in vain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.coordinator.simulation import Simulation, elastic
from tests.coordinator.worlds import (
    LOST_MS,
    TIMEOUT_MS,
    bring_back,
    lose,
    shrunk,
    slices_of,
    started,
)
from tpujob_agent.protocol import (
    FENCE_S,
    EventKind,
)
from tpujob_coordinator.elasticity import least_slices
from tpujob_coordinator.membership import Place, largest_size, world_sizes
from tpujob_coordinator.stages import Stage

FENCED_MS = FENCE_S * 1000 + 20_000


@pytest.mark.parametrize(
    ("last_size", "missing_ms", "least"),
    [
        (0, 59_999, 4),  # the first world is the wanted one
        (0, 60_000, 2),  # unless its slices do not come
        (4, 59_999, 4),
        (4, 60_000, 2),
        (3, 0, 3),  # the missing slice has been waited for already
        (3, 60_000, 2),
    ],
)
def test_a_smaller_world_is_formed_after_waiting(
    last_size: int, missing_ms: int, least: int
) -> None:
    """The last world's size at once, the smallest allowed when the timeout is over."""
    assert least_slices(elastic(4, 2, 3), last_size, missing_ms) == least


@given(st.integers(1, 8), st.sets(st.integers(-1, 9)), st.integers(0, 10))
def test_a_world_has_an_allowed_size(slices: int, smaller: set[int], available: int) -> None:
    """The largest size that is allowed and available, and nothing else."""
    config = elastic(slices, *smaller)
    sizes = world_sizes(config)
    assert sizes[-1] == slices
    size = largest_size(config, available)
    assert size in {0, *sizes}
    assert size <= available
    assert not [other for other in sizes if size < other <= available]


def test_a_job_that_is_not_elastic_waits() -> None:
    """Without smaller worlds nothing runs until the lost slice is back, however long it takes."""
    simulation = started(2)
    lose(simulation, 1)
    simulation.wait(LOST_MS + 10 * TIMEOUT_MS)
    assert simulation.core.stage is Stage.FORMING
    bring_back(simulation, 1)
    assert slices_of(simulation) == (0, 1)


def test_a_lost_slice_is_waited_for_and_then_left_out() -> None:
    """Losing slice 0: its hosts are waited for, then another host leads a smaller world."""
    simulation = started(2, 1, hosts=2)
    lose(simulation, 0)
    simulation.wait(TIMEOUT_MS - LOST_MS)
    assert simulation.core.stage is Stage.FORMING
    simulation.wait(2 * LOST_MS)
    world = simulation.core.world
    assert world is not None
    assert slices_of(simulation) == (1,)
    assert world.leader.startswith("10.0.1.0:")
    runs = [world.run_of(place) for place in world.places]
    assert [(run.process_id, run.slice_id) for run in runs] == [(0, 0), (1, 0)]
    assert {(run.num_processes, run.num_slices) for run in runs} == {(2, 1)}
    assert simulation.events(EventKind.GENERATION_STARTED)[-1].data["wantedSlices"] == 2


def test_a_slice_that_comes_back_in_time_is_taken() -> None:
    """No smaller world is formed while waiting is worth it."""
    simulation = started(2, 1)
    lose(simulation, 1)
    simulation.wait(TIMEOUT_MS // 2)
    bring_back(simulation, 1)
    assert slices_of(simulation) == (0, 1)
    assert len(simulation.events(EventKind.GENERATION_STARTED)) == 2


def test_a_spare_is_better_than_a_smaller_world() -> None:
    """The spare takes over at once; only the second loss makes the world wait and shrink."""
    simulation = started(2, 1, spares=1)
    lose(simulation, 0)
    simulation.wait(LOST_MS)
    assert slices_of(simulation) == (1, 2)
    lose(simulation, 2)
    simulation.wait(LOST_MS)
    assert slices_of(simulation) == ()
    simulation.wait(TIMEOUT_MS)
    assert slices_of(simulation) == (1,)


def test_a_crash_in_a_smaller_world_is_not_waited_after() -> None:
    """What is missing has been waited for once; the same slices go on at once."""
    simulation = shrunk()
    simulation.agents[Place(1, 0)].end(simulation.now_ms, signal=9)
    simulation.settle()
    assert slices_of(simulation) == (1,)


def test_a_job_whose_slices_do_not_all_come_begins_smaller() -> None:
    """The first world too is waited for, until no earlier coordinator's can be running still."""
    simulation = Simulation(elastic(2, 1))
    simulation.connect(simulation.boot(Place(1, 0)))
    simulation.settle()
    simulation.wait(TIMEOUT_MS + LOST_MS)
    assert slices_of(simulation) == ()
    simulation.wait(FENCED_MS - TIMEOUT_MS)
    assert slices_of(simulation) == (1,)


def test_a_world_that_nobody_hears_may_be_training() -> None:
    """No other world is formed beside it until its agents must have stopped it."""
    simulation = shrunk()
    bring_back(simulation, 0)
    alone = simulation.agents[Place(1, 0)]
    simulation.disconnect(alone)  # its network is cut, and it trains on
    simulation.wait(FENCED_MS - 30_000)
    assert alone.live_generation
    assert slices_of(simulation) == ()
    simulation.wait(30_000)
    assert not alone.live_generation
    assert slices_of(simulation) == (0,)


def test_a_world_that_no_other_can_replace_needs_no_fence() -> None:
    """Whoever is part of the only possible world trains on without a coordinator."""
    for config, fence_s in ((elastic(2, 1), 0), (elastic(2), 0), (elastic(1, spares=1), FENCE_S)):
        simulation = Simulation(config)
        simulation.start()
        world = simulation.core.world
        assert world is not None
        assert world.run_of(world.places[0]).fence_s == fence_s


def test_a_lost_pod_of_a_single_slice_is_replaced_by_the_spare_at_once() -> None:
    """A host that has said goodbye, or any other host of its world, proves that nothing runs."""
    simulation = started(1, spares=1, hosts=2)
    simulation.disconnect(simulation.agents.pop(Place(0, 0)))
    simulation.wait(LOST_MS)
    assert slices_of(simulation) == (1,)
    bring_back(simulation, 0)
    for place in (Place(1, 0), Place(1, 1)):
        simulation.agents[place].leave(simulation.now_ms)
    simulation.settle()
    for place in (Place(1, 0), Place(1, 1)):
        simulation.disconnect(simulation.agents.pop(place))
    simulation.wait(LOST_MS)
    assert slices_of(simulation) == (0,)


def test_a_new_coordinator_waits_for_what_was_lost_meanwhile() -> None:
    """Remains of a whole world are no reason for a smaller one before the timeout."""
    simulation = started(2, 1)
    simulation.restart_coordinator()
    del simulation.agents[Place(0, 0)]
    simulation.connect(simulation.agents[Place(1, 0)])
    simulation.wait(TIMEOUT_MS - LOST_MS)
    assert slices_of(simulation) == ()
    assert simulation.events(EventKind.LOSS)
    simulation.wait(20_000)
    assert slices_of(simulation) == (1,)
