"""A host that is told to go: everybody saves and exits while there is time."""

from __future__ import annotations

import pytest

from tests.coordinator.simulation import Simulation, config
from tests.coordinator.worlds import save_and_leave
from tpujob_agent.protocol import Budget, Cause, EventKind, ExitCode, Phase, Save
from tpujob_coordinator.farewell import LAST_MS
from tpujob_coordinator.membership import Place
from tpujob_coordinator.stages import Stage

FIRST, OTHER = Place(0, 0), Place(1, 1)


def training(**options: int) -> Simulation:
    """A world that trains a program which obeys requests to save."""
    simulation = Simulation(config(**options))
    simulation.start()
    simulation.train()
    return simulation


def farewells(simulation: Simulation) -> list[Save]:
    """What the trainers were asked to save, each order once."""
    orders = [order for agent in simulation.agents.values() for order in agent.orders]
    return sorted({order for order in orders if isinstance(order, Save)}, key=lambda s: s.step)


def test_a_leaving_host_has_everybody_save_and_exit() -> None:
    """All are asked for one save ahead of them, and their exit code means preemption."""
    simulation = training()
    simulation.agents[OTHER].announce(simulation.now_ms)
    simulation.settle()
    (save,) = farewells(simulation)
    assert save.then_leave
    assert save.step >= 11 + 10  # a second's steps go on while the order travels
    assert simulation.core.stage is Stage.RUNNING
    for agent in simulation.agents.values():
        agent.advance(simulation.now_ms, step=save.step, committed_step=save.step)
        agent.end(simulation.now_ms, exit_code=ExitCode.PREEMPTED)
    simulation.now_ms += 10
    simulation.settle()
    (loss,) = simulation.events(EventKind.LOSS)
    assert (loss.data["cause"], loss.data["slice"], loss.data["host"]) == (Cause.PREEMPTION, 1, 1)
    assert loss.data["onsetAtMs"] >= loss.data["detectedAtMs"] - 10
    assert simulation.core.budgets.used == {Budget.INFRASTRUCTURE: 1}
    assert simulation.core.committed_step == save.step


def test_a_save_that_takes_too_long_is_not_waited_for() -> None:
    """Before the grace period ends, the world is ended as it was without a save."""
    simulation = training()
    simulation.agents[OTHER].announce(simulation.now_ms)
    simulation.wait(30_000 - LAST_MS - 1_000)
    assert not simulation.events(EventKind.LOSS)
    simulation.wait(2_000)
    (loss,) = simulation.events(EventKind.LOSS)
    assert (loss.data["cause"], loss.data["host"]) == (Cause.PREEMPTION, 1)


def test_a_short_grace_ends_the_world_at_once() -> None:
    """Without time for a save nobody is asked for one."""
    simulation = training()
    simulation.agents[OTHER].announce(simulation.now_ms, LAST_MS)
    simulation.settle()
    assert not farewells(simulation)
    assert simulation.events(EventKind.LOSS)


def test_hosts_that_leave_together_are_one_loss() -> None:
    """A drained slice: the second host's leaving neither asks again nor counts again."""
    simulation = training()
    for place in (Place(1, 0), Place(1, 1)):
        simulation.agents[place].announce(simulation.now_ms)
    simulation.settle()
    (save,) = farewells(simulation)
    for agent in simulation.agents.values():
        agent.advance(simulation.now_ms, committed_step=save.step)
        agent.end(simulation.now_ms, exit_code=ExitCode.PREEMPTED)
    simulation.settle()
    (loss,) = simulation.events(EventKind.LOSS)
    assert loss.data["slice"] == 1
    assert simulation.core.budgets.used == {Budget.INFRASTRUCTURE: 1}


def test_a_crash_during_a_farewell_is_the_crash_it_is() -> None:
    """A trainer killed while the others save: the loss names it and its signal."""
    simulation = training()
    simulation.agents[OTHER].announce(simulation.now_ms)
    simulation.settle()
    simulation.agents[FIRST].end(simulation.now_ms, signal=9)
    simulation.settle()
    (loss,) = simulation.events(EventKind.LOSS)
    assert (loss.data["cause"], loss.data["slice"], loss.data["host"]) == (Cause.PROCESS, 0, 0)


def test_a_leaver_that_is_gone_too_early_was_preempted() -> None:
    """Spot hosts get less time than was told: no node is blamed for it."""
    simulation = training()
    simulation.agents[OTHER].announce(simulation.now_ms)
    simulation.settle()
    simulation.disconnect(simulation.agents[OTHER])
    simulation.wait(3_000)
    (loss,) = simulation.events(EventKind.LOSS)
    assert (loss.data["cause"], loss.data["host"]) == (Cause.PREEMPTION, 1)


def restarted(*, restored_step: int | None = None) -> Simulation:
    """A world that starts again after a crash at step 11; the last checkpoint is of step 8."""
    simulation = training()
    for agent in simulation.agents.values():
        agent.advance(simulation.now_ms, committed_step=8)
    simulation.settle()
    simulation.agents[OTHER].end(simulation.now_ms, signal=9)
    simulation.settle()
    if restored_step is not None:
        restore(simulation, restored_step)
    assert simulation.core.stage is Stage.RUNNING
    return simulation


def restore(simulation: Simulation, step: int) -> None:
    """Every trainer has restored a step, and compiles."""
    for agent in simulation.agents.values():
        told = {"phase": Phase.COMPILE, "phase_at_ms": simulation.now_ms, "obeys_saves": True}
        agent.advance(simulation.now_ms, restored_step=step, **told)
    simulation.settle()


def test_what_only_memory_holds_is_saved_before_its_pods_go() -> None:
    """A host that has to go while the world starts again: the first steps are waited for."""
    simulation = restarted(restored_step=10)
    simulation.agents[OTHER].announce(simulation.now_ms)
    simulation.settle()
    (save,) = farewells(simulation)
    assert (save.then_leave, save.step) == (True, 10 + 15)  # of a second and a half, as before
    assert len(simulation.events(EventKind.LOSS)) == 1  # the crash before
    save_and_leave(simulation)
    assert simulation.events(EventKind.LOSS)[-1].data["cause"] == Cause.PREEMPTION
    assert simulation.core.committed_step == save.step


def test_a_world_that_has_just_begun_is_as_fast_as_the_one_before() -> None:
    """After one step its pace is not known, and an order takes a while to come."""
    simulation = restarted(restored_step=10)
    for agent in simulation.agents.values():
        now = {"step_at_ms": simulation.now_ms, "first_step_at_ms": simulation.now_ms}
        phase = {"phase": Phase.TRAIN, "phase_at_ms": simulation.now_ms}
        agent.advance(simulation.now_ms, first_step=11, step=11, **now, **phase)
    simulation.settle()
    simulation.agents[OTHER].announce(simulation.now_ms)
    simulation.settle()
    (save,) = farewells(simulation)
    assert save.step == 11 + 15


def test_what_is_on_storage_is_not_waited_for() -> None:
    """The same from a checkpoint: nothing would be lost, so the start is not waited for."""
    simulation = restarted(restored_step=8)
    simulation.agents[OTHER].announce(simulation.now_ms)
    simulation.settle()
    assert not farewells(simulation)
    assert simulation.events(EventKind.LOSS)[-1].data["cause"] == Cause.PREEMPTION


def test_a_world_that_has_not_restored_yet_is_waited_for_until_it_has() -> None:
    """Then it is known whether only memory holds what it goes on from."""
    simulation = restarted()
    simulation.agents[OTHER].announce(simulation.now_ms)
    simulation.wait(2_000)
    assert not farewells(simulation)
    assert len(simulation.events(EventKind.LOSS)) == 1
    restore(simulation, 10)
    (save,) = farewells(simulation)
    assert save.step > 10
    save_and_leave(simulation)
    assert simulation.events(EventKind.LOSS)[-1].data["cause"] == Cause.PREEMPTION
    assert simulation.core.committed_step == save.step


def test_a_world_that_turns_out_to_go_on_from_storage_ends_at_once() -> None:
    """Snapshots were lost, or bad: nothing is at stake any more."""
    simulation = restarted()
    simulation.agents[OTHER].announce(simulation.now_ms)
    simulation.settle()
    restore(simulation, 8)
    assert not farewells(simulation)
    assert simulation.events(EventKind.LOSS)[-1].data["cause"] == Cause.PREEMPTION


def test_a_world_that_never_restores_is_not_waited_for_too_long() -> None:
    """Before the grace period ends."""
    simulation = restarted()
    simulation.agents[OTHER].announce(simulation.now_ms)
    simulation.wait(30_000 - LAST_MS + 1_000)
    assert len(simulation.events(EventKind.LOSS)) == 2


@pytest.mark.parametrize("obeys", [False, True])
def test_a_world_with_nothing_at_stake_ends_at_once(*, obeys: bool) -> None:
    """A program that never looks; or one whose last step is on storage."""
    simulation = Simulation(config())
    simulation.start()
    simulation.train(obeys=obeys)
    if obeys:
        for agent in simulation.agents.values():
            agent.advance(simulation.now_ms, committed_step=11)
        simulation.settle()
    simulation.agents[OTHER].end(simulation.now_ms, signal=9)
    simulation.settle()
    simulation.agents[OTHER].announce(simulation.now_ms)
    simulation.settle()
    assert len(simulation.events(EventKind.LOSS)) == 2


def reconnect(simulation: Simulation) -> None:
    """A new coordinator, to which all agents come."""
    simulation.restart_coordinator()
    for agent in simulation.agents.values():
        simulation.connect(agent)
    simulation.settle()


def leave_saved(simulation: Simulation, step: int) -> None:
    """Every trainer has saved a step and exits as asked."""
    for agent in simulation.agents.values():
        agent.advance(simulation.now_ms, step=step, committed_step=step)
        agent.end(simulation.now_ms, exit_code=ExitCode.PREEMPTED)
    simulation.settle()


def test_a_new_coordinator_hears_who_has_to_go() -> None:
    """A farewell outlives the coordinator that began it: the host that goes, and no user error."""
    simulation = training()
    simulation.agents[OTHER].announce(simulation.now_ms)
    simulation.settle()
    (save,) = farewells(simulation)
    reconnect(simulation)
    assert simulation.core.stage is Stage.RUNNING
    assert not simulation.events(EventKind.LOSS)
    leave_saved(simulation, save.step)
    (loss,) = simulation.events(EventKind.LOSS)
    assert (loss.data["cause"], loss.data["slice"], loss.data["host"]) == (Cause.PREEMPTION, 1, 1)
    assert simulation.core.budgets.used == {Budget.INFRASTRUCTURE: 1}


def test_a_host_that_has_to_go_while_nobody_coordinates_is_not_stopped() -> None:
    """It speaks before the new coordinator knows of any world, and there is time for a save."""
    simulation = training()
    simulation.restart_coordinator()
    simulation.agents[OTHER].is_leaving = True
    for place in (OTHER, *(place for place in simulation.places if place != OTHER)):
        simulation.connect(simulation.agents[place])
        simulation.settle()
    assert simulation.core.stage is Stage.RUNNING
    assert not simulation.events(EventKind.LOSS)
    assert farewells(simulation)
    assert len(simulation.events(EventKind.DRAINING)) == 1


def test_what_the_coordinator_before_asked_for_is_no_error_of_the_user() -> None:
    """Nobody has to go: it was to form a larger world, and the next one is formed at once."""
    simulation = training()
    reconnect(simulation)
    leave_saved(simulation, 20)
    assert not simulation.events(EventKind.LOSS)
    assert simulation.core.budgets.used == {}
    assert [e.data["generation"] for e in simulation.events(EventKind.GENERATION_STARTED)] == [1, 2]
    simulation.train()
    for agent in simulation.agents.values():
        agent.end(simulation.now_ms, exit_code=ExitCode.PREEMPTED)
    simulation.settle()
    assert simulation.events(EventKind.LOSS)[-1].data["cause"] == Cause.USER_ERROR
