"""Worlds smaller than wanted: formed when waiting was in vain, grown at a checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.coordinator.simulation import SimAgent, Simulation, check_story, elastic
from tpujob_agent.protocol import (
    FENCE_S,
    Budget,
    Cause,
    EventKind,
    ExitCode,
    Leaving,
    Phase,
    ProcessState,
    Save,
)
from tpujob_coordinator.elasticity import PAUSE_MS, least_slices
from tpujob_coordinator.membership import Place, largest_size, world_sizes
from tpujob_coordinator.stages import Stage

LOST_MS = 3_000  # a broken stream is a lost member by then
TIMEOUT_MS = 60_000
FENCED_MS = FENCE_S * 1000 + 20_000


def train(simulation: Simulation, *, obeys: bool = True, step: int = 11) -> None:
    """Every running trainer takes steps."""
    for agent in simulation.agents.values():
        agent.advance(
            simulation.now_ms,
            phase=Phase.TRAIN,
            phase_at_ms=simulation.now_ms,
            obeys_saves=obeys,
            restored_step=0,
            first_step=1,
            first_step_at_ms=simulation.now_ms - 1000,
            step=step,
            step_at_ms=simulation.now_ms,
        )
    simulation.settle()


def started(slices: int, *smaller: int, **more: int) -> Simulation:
    """A job whose first world, of the wanted size, trains."""
    simulation = Simulation(elastic(slices, *smaller, **more))
    simulation.start()
    train(simulation)
    return simulation


def lose(simulation: Simulation, slice_index: int) -> None:
    """A slice is gone without a word."""
    for place in [p for p in simulation.places if p.slice == slice_index]:
        simulation.disconnect(simulation.agents.pop(place))


def bring_back(simulation: Simulation, slice_index: int) -> None:
    """New pods of a slice join."""
    for place in [p for p in simulation.places if p.slice == slice_index]:
        simulation.connect(simulation.boot(place, new_pod=True))
    simulation.settle()


def shrunk(*, obeys: bool = True) -> Simulation:
    """A world of two slices that has lost the first one and trains on without it."""
    simulation = started(2, 1)
    lose(simulation, 0)
    simulation.wait(LOST_MS + TIMEOUT_MS)
    train(simulation, obeys=obeys)
    assert slices_of(simulation) == (1,)
    return simulation


def slices_of(simulation: Simulation) -> tuple[int, ...]:
    """The slices of the world that runs."""
    running = simulation.core.stage is Stage.RUNNING and simulation.core.world
    return running.slices if running else ()


def orders_to_leave(simulation: Simulation) -> list[Save]:
    """All orders to save and leave."""
    orders = [order for agent in simulation.agents.values() for order in agent.orders]
    return [order for order in orders if isinstance(order, Save) and order.then_leave]


def save_and_leave(simulation: Simulation) -> None:
    """Every trainer does as it was told."""
    for agent in simulation.agents.values():
        obey_save(simulation, agent)
    simulation.settle()


def obey_save(simulation: Simulation, agent: SimAgent) -> None:
    """A trainer reaches the step it was asked for, saves, and exits."""
    asked = [order for order in agent.orders if isinstance(order, Save)]
    if asked and asked[-1].generation == agent.live_generation:
        step = asked[-1].step
        agent.advance(simulation.now_ms, step=step, committed_step=step)
        agent.end(simulation.now_ms, exit_code=ExitCode.PREEMPTED)


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


def test_a_smaller_world_grows_at_a_checkpoint() -> None:
    """All save at one step and leave; the larger world follows without a loss or a charge."""
    simulation = shrunk()
    used = dict(simulation.core.budgets.used)
    losses = len(simulation.events(EventKind.LOSS))
    bring_back(simulation, 0)
    simulation.wait(1000)
    (save,) = orders_to_leave(simulation)
    assert save.step > 11
    assert slices_of(simulation) == (1,)  # it trains on until it has saved
    (growing,) = simulation.events(EventKind.GROWING)
    assert (growing.data["toSlices"], growing.data["step"]) == (2, save.step)
    save_and_leave(simulation)
    assert slices_of(simulation) == (0, 1)
    assert simulation.core.committed_step == save.step
    assert len(simulation.events(EventKind.LOSS)) == losses
    assert simulation.core.budgets.used == used
    (left,) = simulation.events(EventKind.GENERATION_LEFT)
    assert left.data["step"] == save.step


def test_a_world_does_not_grow_again_at_once() -> None:
    """Slices that come one after the other are taken together, after a pause."""
    simulation = started(3, 1, 2)
    for lost in (1, 2):
        lose(simulation, lost)
    simulation.wait(LOST_MS + TIMEOUT_MS)
    train(simulation)
    bring_back(simulation, 1)
    simulation.wait(1000)
    save_and_leave(simulation)
    assert slices_of(simulation) == (0, 1)
    train(simulation)
    bring_back(simulation, 2)
    simulation.wait(PAUSE_MS - 10_000)
    assert len(simulation.events(EventKind.GROWING)) == 1
    simulation.wait(10_000)
    assert len(simulation.events(EventKind.GROWING)) == 2
    save_and_leave(simulation)
    assert slices_of(simulation) == (0, 1, 2)


def test_a_program_that_does_not_obey_grows_at_its_next_loss() -> None:
    """It is never stopped for growing."""
    simulation = shrunk(obeys=False)
    bring_back(simulation, 0)
    simulation.wait(10 * TIMEOUT_MS)
    assert not simulation.events(EventKind.GROWING)
    assert slices_of(simulation) == (1,)
    simulation.agents[Place(1, 0)].end(simulation.now_ms, signal=9)
    simulation.settle()
    assert slices_of(simulation) == (0, 1)


def test_a_program_that_saves_but_stays_trains_on() -> None:
    """An order that is not obeyed costs nothing, and a host that has to go is told anew."""
    simulation = shrunk()
    bring_back(simulation, 0)
    simulation.wait(10 * TIMEOUT_MS)
    assert slices_of(simulation) == (1,)
    train(simulation, step=500)
    leaver = simulation.agents[Place(1, 0)]
    leaver.is_leaving = True
    leaver.outbox.append(Leaving(simulation.now_ms, 30_000))
    simulation.settle()
    assert orders_to_leave(simulation)[-1].step > 500
    save_and_leave(simulation)
    assert simulation.events(EventKind.LOSS)[-1].data["cause"] == Cause.PREEMPTION


def test_one_that_stays_when_the_others_have_left_is_stopped() -> None:
    """A world that has begun to leave is ended, so that the next one can be formed."""
    simulation = started(2, 1, hosts=2)
    lose(simulation, 0)
    simulation.wait(LOST_MS + TIMEOUT_MS)
    train(simulation)
    bring_back(simulation, 0)
    simulation.wait(1000)
    obey_save(simulation, simulation.agents[Place(1, 1)])
    simulation.wait(40_000)
    assert slices_of(simulation) == (0, 1)
    assert simulation.events(EventKind.GENERATION_LEFT)
    assert len(simulation.events(EventKind.LOSS)) == 1


def test_a_crash_while_growing_is_the_crash_it_is() -> None:
    """It is told and charged, and the next world is larger all the same."""
    simulation = shrunk()
    bring_back(simulation, 0)
    simulation.wait(1000)
    simulation.agents[Place(1, 0)].end(simulation.now_ms, signal=9)
    simulation.settle()
    assert simulation.events(EventKind.LOSS)[-1].data["signal"] == 9
    assert simulation.core.budgets.used[Budget.PROCESS] == 1
    assert slices_of(simulation) == (0, 1)


def test_a_new_coordinator_leaves_a_smaller_world_alone() -> None:
    """It learns the world's size from its members, and grows it as the old one would have."""
    simulation = shrunk()
    simulation.restart_coordinator()
    for agent in simulation.agents.values():
        simulation.connect(agent)
    simulation.settle()
    assert slices_of(simulation) == (1,)
    assert not simulation.events(EventKind.LOSS)
    bring_back(simulation, 0)
    simulation.wait(1000)
    save_and_leave(simulation)
    assert slices_of(simulation) == (0, 1)


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


Action = Callable[[Simulation, int], None]


def _each(act: Callable[[Simulation, SimAgent], None]) -> Action:
    """What happens to the hosts of a slice, as far as they are there."""

    def action(simulation: Simulation, index: int) -> None:
        for agent in [a for place, a in simulation.agents.items() if place.slice == index]:
            act(simulation, agent)

    return action


def _vanish(simulation: Simulation, agent: SimAgent) -> None:
    simulation.disconnect(simulation.agents.pop(agent.place))


ACTIONS: dict[str, Action] = {
    "lost": _each(_vanish),
    "back": bring_back,
    "leaves": _each(lambda s, agent: agent.leave(s.now_ms)),
    "killed": _each(lambda s, agent: agent.end(s.now_ms, signal=9)),
    "trains": lambda s, i: train(s, step=11 + i),
    "saves": _each(obey_save),
    "seconds": lambda s, i: s.wait(1000 * (i + 1)),
    "a timeout": lambda s, _: s.wait(TIMEOUT_MS),
    "messages": lambda s, _: s.settle(),
    "coordinator restarts": lambda s, _: s.restart_coordinator(),
    "disconnects": _each(lambda s, agent: s.disconnect(agent)),
    "reconnects": _each(lambda s, agent: s.connect(agent)),
}
STORIES = st.lists(
    st.tuples(st.sampled_from(sorted(ACTIONS)), st.integers(min_value=0, max_value=3)), max_size=40
)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([(2, 0, (1,)), (2, 1, (1,)), (3, 1, (2,)), (4, 0, (2,))]), STORIES)
def test_worlds_shrink_and_grow_back(
    shape: tuple[int, int, tuple[int, ...]], story: list[tuple[str, int]]
) -> None:
    """Never two worlds that make steps or one of a size not allowed; in the end the wanted one."""
    slices, spares, smaller = shape
    simulation = Simulation(elastic(slices, *smaller, spares=spares))
    simulation.start()
    for name, index in story:
        ACTIONS[name](simulation, index % (slices + spares))
        assert len(whole_worlds(simulation)) <= 1
    _check_sizes(simulation, {*smaller, slices})
    simulation.calm(5)
    for _ in range(8):
        train(simulation, step=1000)
        simulation.wait(PAUSE_MS // 4)
        save_and_leave(simulation)
    _check_sizes(simulation, {*smaller, slices})
    check_story(simulation.events())
    assert len(slices_of(simulation)) == slices


def whole_worlds(simulation: Simulation) -> list[int]:
    """Generations that can make steps: all their processes are alive."""
    reports = [agent.report for agent in simulation.agents.values()]
    live = [r for r in reports if r and r.state is ProcessState.RUNNING]
    sizes = {report.generation: report.num_processes for report in live}
    counts = Counter(report.generation for report in live)
    return [generation for generation, count in counts.items() if count == sizes[generation]]


def _check_sizes(simulation: Simulation, allowed: set[int]) -> None:
    """Every world that a coordinator has formed itself has an allowed size."""
    events = [*simulation.past, *simulation.events()]
    for event in events:
        if event.kind is EventKind.GENERATION_STARTED and not event.data["adopted"]:
            assert len(event.data["slices"]) in allowed
