"""The coordinator plans how often trainers save, and every trainer learns of it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from tests.coordinator.simulation import Simulation, config
from tpujob_agent.protocol import EventKind, Phase, Run, SaveEvery
from tpujob_coordinator.membership import Place

FIRST, OTHER = Place(0, 0), Place(1, 1)
#: Of 5,000 chips one fails every 9.6 hours, as is assumed at first.
CHIPS = 5_000


def training(*, plans_interval: bool = True) -> Simulation:
    """A world that trains, a step a second."""
    wanted = dataclasses.replace(config(), chips=CHIPS, plans_interval=plans_interval)
    simulation = Simulation(wanted)
    simulation.start()
    now_ms = simulation.now_ms
    told = {"phase": Phase.TRAIN, "phase_at_ms": now_ms, "restored_step": 0}
    step = {"first_step": 1, "first_step_at_ms": now_ms, "step": 1, "step_at_ms": now_ms}
    for agent in simulation.agents.values():
        agent.advance(now_ms, **told, **step)
    simulation.settle()
    return simulation


def commit(simulation: Simulation, step: int, **cost_ms: int) -> None:
    """Everybody trains up to a step whose checkpoint is durable now."""
    cost: dict[str, Any] = {"commit_blocked_ms": 500, "commit_lag_ms": 20_000} | cost_ms
    for agent in simulation.agents.values():
        now_ms = simulation.now_ms
        reached = {"step": step, "step_at_ms": now_ms, "committed_step": step}
        agent.advance(now_ms, **reached, committed_at_ms=now_ms, **cost)
    simulation.settle()


def told(simulation: Simulation, place: Place) -> list[int]:
    """The intervals that an agent was told in the middle of a run, in milliseconds."""
    orders = simulation.agents[place].orders
    return [order.interval_ms for order in orders if isinstance(order, SaveEvery)]


def runs(simulation: Simulation, place: Place) -> list[int]:
    """The intervals with which an agent was told to start."""
    orders = simulation.agents[place].orders
    return [order.save_every_ms for order in orders if isinstance(order, Run)]


def test_first_measured_commit_makes_a_plan() -> None:
    """All hosts are told; the timeline says what follows from what."""
    simulation = training()
    assert runs(simulation, FIRST) == [0]
    commit(simulation, 60)
    (event,) = simulation.events(EventKind.INTERVAL)
    # sqrt(2 · 0.5 s · 34,560 s) = 186 s
    assert event.data["intervalMs"] == pytest.approx(186_000, rel=0.01)
    assert (event.data["blockedMs"], event.data["lagMs"]) == (500, 20_000)
    assert 0.99 < event.data["predictedRatio"] < 1
    assert all(told(simulation, place) == [event.data["intervalMs"]] for place in simulation.agents)


def test_next_world_starts_with_the_plan() -> None:
    """A restart does not fall back to the trainer's own interval."""
    simulation = training()
    commit(simulation, 60)
    simulation.agents[OTHER].end(simulation.now_ms, signal=9)
    simulation.settle()
    assert runs(simulation, FIRST) == [0, told(simulation, FIRST)[0]]


def test_same_costs_change_nothing() -> None:
    """What is in force already is not told again."""
    simulation = training()
    for step in (60, 120, 180):
        simulation.wait(60_000)
        commit(simulation, step)
    assert len(simulation.events(EventKind.INTERVAL)) == 1


def test_dearer_saves_become_rarer_step_by_step() -> None:
    """A plan follows what was measured last, at most twofold at once."""
    simulation = training()
    commit(simulation, 60)
    for step in range(120, 120 + 60 * 12, 60):
        commit(simulation, step, commit_blocked_ms=20_000)
    intervals = [event.data["intervalMs"] for event in simulation.events(EventKind.INTERVAL)]
    planned = list(dict.fromkeys(intervals))
    assert planned[-1] == pytest.approx(1_196_000, rel=0.25)
    assert all(after <= 2 * before for before, after in itertools.pairwise(planned))


def test_a_host_that_was_away_is_told_again() -> None:
    """The order may have been lost with its connection."""
    simulation = training()
    commit(simulation, 60)
    agent = simulation.agents[OTHER]
    simulation.disconnect(agent)
    agent.orders.clear()
    simulation.connect(agent)
    simulation.settle()
    assert told(simulation, OTHER) == [simulation.core.pacing.interval_ms]


@pytest.mark.parametrize(
    ("plans_interval", "cost"), [(False, {}), (True, {"commit_blocked_ms": -1})]
)
def test_nothing_is_planned_where_nothing_can_be(
    plans_interval: bool, cost: dict[str, int]
) -> None:
    """Fixed intervals stay, and so does that of a program that does not tell its costs."""
    simulation = training(plans_interval=plans_interval)
    commit(simulation, 60, **cost)
    assert not simulation.events(EventKind.INTERVAL)
    assert told(simulation, FIRST) == []
