"""Hosts whose leaving is announced: a save before it, and the right cause after it."""

from __future__ import annotations

import dataclasses

import pytest

from tests.coordinator.simulation import Simulation, config
from tests.coordinator.test_farewell import FIRST, OTHER, farewells, training
from tpujob_agent.notices import EARLY_MS, Notice
from tpujob_agent.protocol import Budget, Cause, EventKind, Leaving, ProtocolError
from tpujob_coordinator.http import _told
from tpujob_coordinator.notices import LEAD_MS

NODE = "node11"  # of OTHER


def tell(simulation: Simulation, *notices: Notice) -> None:
    """The operator tells of these hosts, and no others."""
    simulation.route(simulation.core.notice(notices, simulation.now_ms))
    simulation.settle()


def at_once(cause: Cause = Cause.MAINTENANCE, node: str = NODE) -> Notice:
    """The node goes at any moment."""
    return Notice(node, cause, 0, "it is told to go")


def test_everybody_saves_at_once_and_trains_on() -> None:
    """One save, at a step ahead of all; nobody leaves, and telling again changes nothing."""
    simulation = training()
    tell(simulation, at_once())
    tell(simulation, at_once())
    simulation.wait(5_000)
    (save,) = farewells(simulation)
    assert not save.then_leave
    assert save.step > 11
    assert not simulation.events(EventKind.LOSS)


def test_a_planned_leave_is_met_with_a_save_shortly_before() -> None:
    """Not when it is announced, but when so much time is left as a save may need."""
    simulation = training()
    notice = dataclasses.replace(at_once(), at_ms=simulation.now_ms + 5 * LEAD_MS)
    tell(simulation, notice)
    simulation.wait(4 * LEAD_MS - 2_000)
    assert not farewells(simulation)
    simulation.wait(4_000)
    assert len(farewells(simulation)) == 1


def test_a_notice_that_is_taken_back_is_void() -> None:
    """The operator tells of all hosts there are; a maintenance may be moved."""
    simulation = training()
    tell(simulation, dataclasses.replace(at_once(), at_ms=simulation.now_ms + 2 * LEAD_MS))
    tell(simulation)
    simulation.wait(3 * LEAD_MS)
    assert not farewells(simulation)


def test_nodes_of_others_are_no_reason_to_save() -> None:
    """A spare's node, or one that left the job long ago."""
    simulation = training()
    tell(simulation, at_once(node="elsewhere"))
    simulation.wait(2_000)
    assert not farewells(simulation)


@pytest.mark.parametrize("cause", [Cause.PREEMPTION, Cause.MAINTENANCE])
@pytest.mark.parametrize("how", ["told to go", "silent"])
def test_the_loss_has_the_cause_that_was_announced(cause: Cause, how: str) -> None:
    """Whether SIGTERM came or not; no budget of the user's is charged, nor the breaker."""
    simulation = training()
    tell(simulation, at_once(cause))
    agent = simulation.agents[OTHER]
    if how == "told to go":
        agent.is_leaving = True
        agent.outbox.append(Leaving(simulation.now_ms, 1_000))
        simulation.settle()
    else:
        simulation.disconnect(agent)
        simulation.wait(3_000)
    (loss,) = simulation.events(EventKind.LOSS)
    assert (loss.data["cause"], loss.data["node"]) == (cause, NODE)
    assert "it is told to go" in loss.data["message"]
    assert simulation.core.budgets.used == {Budget.INFRASTRUCTURE: 1}
    assert simulation.core.budgets.without_commit == 0


def test_a_loss_long_before_a_planned_leave_is_none_of_it() -> None:
    """A node that dies hours before its maintenance has died."""
    simulation = training()
    far = simulation.now_ms + 2 * EARLY_MS
    tell(simulation, dataclasses.replace(at_once(), at_ms=far))
    simulation.disconnect(simulation.agents[OTHER])
    simulation.wait(3_000)
    (loss,) = simulation.events(EventKind.LOSS)
    assert loss.data["cause"] == Cause.NODE


def test_who_comes_later_is_marked_too() -> None:
    """A member that joins after its node's notice is lost as announced."""
    simulation = training()
    tell(simulation, at_once(node="node00"))
    simulation.connect(simulation.boot(FIRST, new_pod=True))
    simulation.settle()
    assert simulation.core.members[FIRST].notice is not None


@pytest.mark.parametrize("raw", [{}, {"node": "n", "cause": 3, "atMs": 0, "reason": ""}])
def test_nonsense_is_no_notice(raw: dict[str, object]) -> None:
    """The error names what was given."""
    with pytest.raises(ProtocolError, match="not a notice"):
        Notice.from_json(raw)
    assert Notice.from_json(at_once().to_json()) == at_once()


def test_a_newer_operator_is_understood_as_far_as_it_can_be() -> None:
    """Hosts that leave for a reason of its own leave; limits of its own budgets are not ours."""
    told = {
        "notices": [{"node": NODE, "cause": "weather", "atMs": 0, "reason": "it is told to go"}],
        "budgets": {"process": 3, "weather": 1},
        "moreOfIt": True,
    }
    assert _told(told) == ([at_once()], {"process": 3}, [])


def test_changed_budgets_hold_from_now_on() -> None:
    """What has been used stays used; a limit that is raised allows more."""
    simulation = Simulation(config(process=1))
    simulation.start()
    for allowed in (1, 3):
        simulation.core.limit({"process": allowed})
        while simulation.core.budgets.used.get("process", 0) < allowed:
            simulation.agents[FIRST].end(simulation.now_ms, signal=9)
            simulation.calm(40)
        assert not simulation.events(EventKind.GAVE_UP)
    simulation.agents[FIRST].end(simulation.now_ms, signal=9)
    simulation.calm(40)
    assert "allows 3 restarts" in simulation.events(EventKind.GAVE_UP)[0].data["message"]
