"""Stragglers in the coordinator: told on the timeline, and acted on where that is the policy."""

from __future__ import annotations

import dataclasses

import pytest

from tests.coordinator.simulation import Simulation, config
from tpujob_agent.protocol import (
    REPLACED_WITHIN_S,
    Budget,
    Cause,
    Event,
    EventKind,
    ExitCode,
    Finding,
    Pong,
    Save,
    StragglerAction,
)
from tpujob_coordinator.clocks import RoundTrips
from tpujob_coordinator.membership import Place
from tpujob_coordinator.remedies import COOLDOWN_MS
from tpujob_coordinator.stages import Stage

SLOW = Place(1, 1)
STEP_MS = 500


def world(action: StragglerAction = StragglerAction.REPORT, spares: int = 0) -> Simulation:
    """A world that trains under this policy, and has a checkpoint."""
    wanted = dataclasses.replace(config(spares=spares), straggler_action=action.value)
    simulation = Simulation(wanted)
    simulation.start()
    simulation.train()
    commit(simulation)
    return simulation


def commit(simulation: Simulation) -> None:
    """A checkpoint of the newest step."""
    step = simulation.core.step
    for agent in simulation.agents.values():
        agent.advance(simulation.now_ms, committed_step=step, committed_at_ms=simulation.now_ms)
    simulation.settle()


def run_on(simulation: Simulation, seconds: int, late_ms: float, everybody: float = 0.0) -> None:
    """Steps of half a second; ``SLOW`` is late for each, or all hosts take longer alike."""
    for _ in range(seconds):
        first = simulation.core.step + 1
        for place, agent in simulation.agents.items():
            own_ms = late_ms if place == SLOW else 0.0
            samples = [
                [step, (step * (STEP_MS + everybody)) + own_ms, own_ms, 300.0, 0.0, 0.0]
                for step in (first, first + 1)
            ]
            fields = {"step": first + 1, "step_at_ms": simulation.now_ms, "samples": samples}
            agent.advance(simulation.now_ms, **fields)
        simulation.wait(1000)


def findings(simulation: Simulation) -> list[Event]:
    """What was told about the job's health."""
    return simulation.events(EventKind.FINDING)


def test_a_straggler_is_named_once_and_cleared() -> None:
    """With its node, its cause and where to look; by default nothing else is done."""
    simulation = world()
    run_on(simulation, 30, late_ms=100)
    (found,) = findings(simulation)
    assert found.data["finding"] == Finding.STRAGGLER
    assert (found.data["isOpen"], found.data["node"]) == (True, "node11")
    assert (found.data["slice"], found.data["host"], found.data["cause"]) == (*SLOW, "input")
    assert 1.2 < found.data["ratio"] < 1.3
    assert "slice 1 host 1 holds up the others" in found.data["message"].lower()
    assert "waits for its input" in found.data["message"]
    run_on(simulation, 70, late_ms=0)
    assert [event.data["isOpen"] for event in findings(simulation)] == [True, False]
    assert not simulation.events(EventKind.LOSS)


def test_programs_that_tell_no_times_are_not_judged_and_not_pinged() -> None:
    """They cost nothing."""
    simulation = world()
    simulation.wait(60_000)
    assert not findings(simulation)
    assert {type(order).TYPE for agent in simulation.agents.values() for order in agent.orders} <= {
        "run"
    }


def leave(simulation: Simulation) -> Save:
    """Everybody obeys the order to save and leave."""
    orders = [order for agent in simulation.agents.values() for order in agent.orders]
    save = next(order for order in orders if isinstance(order, Save))
    for agent in simulation.agents.values():
        agent.advance(simulation.now_ms, step=save.step, committed_step=save.step, samples=[])
        agent.end(simulation.now_ms, exit_code=ExitCode.PREEMPTED)
    simulation.settle()
    return save


def test_a_restart_saves_first_and_spends_its_own_budget() -> None:
    """No step is lost, and the incident names the straggler."""
    simulation = world(StragglerAction.RESTART)
    run_on(simulation, 20, late_ms=100)
    save = leave(simulation)
    (loss,) = simulation.events(EventKind.LOSS)
    assert (loss.data["cause"], loss.data["slice"], loss.data["host"]) == (Cause.STRAGGLER, *SLOW)
    assert loss.data["isGivenUp"] is False
    assert simulation.core.committed_step == save.step
    assert simulation.core.budgets.used == {Budget.STRAGGLER: 1}
    simulation.wait(2_000)
    assert simulation.core.stage is Stage.RUNNING
    assert simulation.core.newest_generation == 2


def test_a_program_that_does_not_obey_is_ended_at_once() -> None:
    """As by any other loss."""
    simulation = world(StragglerAction.RESTART)
    simulation.train(obeys=False)
    run_on(simulation, 20, late_ms=100)
    (loss,) = simulation.events(EventKind.LOSS)
    assert loss.data["cause"] == Cause.STRAGGLER


def test_never_twice_within_the_cooldown() -> None:
    """However slow the host is after the restart."""
    simulation = world(StragglerAction.RESTART)
    simulation.train(obeys=False)
    run_on(simulation, 20, late_ms=100)
    acted_ms = simulation.events(EventKind.LOSS)[0].at_ms
    while len(simulation.events(EventKind.LOSS)) < 2:
        assert simulation.now_ms < acted_ms + 2 * COOLDOWN_MS
        simulation.train(obeys=False, step=simulation.core.step + 1)
        commit(simulation)
        run_on(simulation, 5, late_ms=100)
    assert simulation.events(EventKind.LOSS)[1].at_ms >= acted_ms + COOLDOWN_MS


@pytest.mark.parametrize("hinders", ["budget", "no checkpoint", "uniform", "new coordinator"])
def test_no_restart_without_need(hinders: str) -> None:
    """A spent budget, no checkpoint since the last restart, all slow, or no memory of the last."""
    simulation = world(StragglerAction.RESTART)
    core = simulation.core
    if hinders == "budget":
        limits = {**core.budgets.limits, Budget.STRAGGLER: 0}
        core.budgets = dataclasses.replace(core.budgets, limits=limits)
    elif hinders == "no checkpoint":
        core.budgets = dataclasses.replace(core.budgets, onsets=(1,))
    elif hinders == "new coordinator":
        simulation.restart_coordinator()
        for agent in simulation.agents.values():
            simulation.connect(agent)
        simulation.settle()
    run_on(simulation, 60, late_ms=0)
    slow = {"everybody": 300.0} if hinders == "uniform" else {}
    run_on(simulation, 30, late_ms=0 if slow else 100, **slow)
    assert not simulation.events(EventKind.LOSS)
    (found,) = findings(simulation)
    assert found.data["finding"] == (Finding.SLOWDOWN if slow else Finding.STRAGGLER)
    if slow:
        assert (found.data["slice"], found.data["host"]) == (-1, -1)
        assert "the cause is not a host" in found.data["message"]


def test_a_spare_takes_the_place_of_a_replaced_straggler() -> None:
    """At once, and the straggler's pod does not come back into a world."""
    simulation = world(StragglerAction.REPLACE, spares=1)
    run_on(simulation, 20, late_ms=100)
    leave(simulation)
    simulation.wait(2_000)
    (loss,) = simulation.events(EventKind.LOSS)
    assert loss.data["isGivenUp"] is True
    assert loss.data["pod"] == simulation.agents[SLOW].pod
    assert simulation.core.world
    assert simulation.core.world.slices == (0, 2)


@pytest.mark.parametrize("is_replaced", [True, False])
def test_without_a_spare_the_replacement_is_waited_for(*, is_replaced: bool) -> None:
    """Not for ever: an operator that is away replaces nothing."""
    simulation = world(StragglerAction.REPLACE)
    run_on(simulation, 20, late_ms=100)
    leave(simulation)
    simulation.wait(20_000)
    assert len(simulation.events(EventKind.GENERATION_STARTED)) == 1
    if is_replaced:
        simulation.connect(simulation.boot(SLOW, new_pod=True))
        simulation.settle()
    else:
        simulation.wait(REPLACED_WITHIN_S * 1000)
    simulation.wait(2_000)
    assert len(simulation.events(EventKind.GENERATION_STARTED)) == 2


def test_the_fastest_round_trip_knows_the_clock_best() -> None:
    """Slow ones do not, and very old ones are forgotten."""
    clock = RoundTrips()
    assert (clock.offset_ms, clock.error_ms) == (None, 0.0)
    assert clock.take(Pong(1000, 5300), 1200) == 200  # theirs is about 4200 ahead
    assert clock.offset_ms == -4200
    clock.take(Pong(2000, 6101), 2004)
    assert (clock.offset_ms, clock.error_ms) == (-4099, 3.0)
    for number in range(40):
        clock.take(Pong(3000 + number, 7000 + number), 3010 + number)
    assert (clock.offset_ms, clock.error_ms) == (-3995, 6.0)
