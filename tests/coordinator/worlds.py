"""Worlds that lose slices and get them back."""

from __future__ import annotations

from tests.coordinator.simulation import SimAgent, Simulation, elastic
from tpujob_agent.protocol import ExitCode, Save
from tpujob_coordinator.stages import Stage

LOST_MS = 3_000  # a broken stream is a lost member by then
TIMEOUT_MS = 60_000


def started(slices: int, *smaller: int, **more: int) -> Simulation:
    """A job whose first world, of the wanted size, trains."""
    simulation = Simulation(elastic(slices, *smaller, **more))
    simulation.start()
    simulation.train()
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
    simulation.train(obeys=obeys)
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
