"""Worlds smaller than wanted grow back at a checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.coordinator.simulation import SimAgent, Simulation, check_story, elastic
from tests.coordinator.worlds import (
    LOST_MS,
    TIMEOUT_MS,
    bring_back,
    lose,
    obey_save,
    orders_to_leave,
    save_and_leave,
    shrunk,
    slices_of,
    started,
)
from tpujob_agent.protocol import (
    Budget,
    Cause,
    EventKind,
    ProcessState,
)
from tpujob_coordinator.elasticity import PAUSE_MS
from tpujob_coordinator.membership import Place


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
    simulation.train()
    bring_back(simulation, 1)
    simulation.wait(1000)
    save_and_leave(simulation)
    assert slices_of(simulation) == (0, 1)
    simulation.train()
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
    simulation.train(step=500)
    simulation.agents[Place(1, 0)].announce(simulation.now_ms)
    simulation.settle()
    assert orders_to_leave(simulation)[-1].step > 500
    save_and_leave(simulation)
    assert simulation.events(EventKind.LOSS)[-1].data["cause"] == Cause.PREEMPTION


def test_one_that_stays_when_the_others_have_left_is_stopped() -> None:
    """A world that has begun to leave is ended, so that the next one can be formed."""
    simulation = started(2, 1, hosts=2)
    lose(simulation, 0)
    simulation.wait(LOST_MS + TIMEOUT_MS)
    simulation.train()
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
    "trains": lambda s, i: s.train(step=11 + i),
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


@settings(max_examples=100)
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
        simulation.train(step=1000)
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
