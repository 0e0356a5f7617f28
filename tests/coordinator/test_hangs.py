"""Who is to blame for a world that stands still."""

from __future__ import annotations

import dataclasses

import pytest

from tests.coordinator.simulation import Simulation, config
from tpujob_agent.protocol import (
    Cause,
    EventKind,
    Excuse,
    ExitCode,
    Phase,
    ProcessState,
    Report,
    Stacks,
)
from tpujob_agent.stacks import NO_ANSWER
from tpujob_coordinator import hangs
from tpujob_coordinator.hangs import judge, main_frames
from tpujob_coordinator.membership import Place
from tpujob_coordinator.stages import Stage

WAITING = """Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.13/threading.py", line 359 in wait

Current thread 0x00007f0000000002 (most recent call first):
  File "/site-packages/jax/_src/array.py", line 631 in _value
  File "/app/train.py", line 40 in loop
"""
STUCK = """Current thread 0x00007f0000000002 [MainThread] (most recent call first):
  File "/app/data.py", line 12 in read_shard
  File "/app/train.py", line 38 in loop
"""
PLACES = [Place(s, h) for s in range(2) for h in range(2)]


def answers(**changed: dict[str, str]) -> dict[Place, Report]:
    """Reports of four hosts that wait for each other, but for ``s0h1={...}``."""
    waiting = Report(0, ProcessState.RUNNING, 1, stacks=WAITING, process_state="S")
    return {
        place: dataclasses.replace(waiting, **changed.get(f"s{place.slice}h{place.host}", {}))  # type: ignore[arg-type] # strings only
        for place in PLACES
    }


def test_the_main_thread_is_the_last_one_listed() -> None:
    """Frames come innermost first, without the addresses."""
    assert [str(frame) for frame in main_frames(WAITING)] == [
        "_src/array.py:631 in _value",
        "app/train.py:40 in loop",
    ]
    assert main_frames("") == main_frames("no stacks: the process does not answer") == ()


def test_a_stopped_process_is_the_culprit() -> None:
    """Its stacks cannot be had, its state can."""
    silent = "no stacks: the process does not answer"
    culprits, message = judge(answers(s1h0={"process_state": "T", "stacks": silent}))
    assert culprits == [Place(1, 0)]
    assert "slice 1 host 0 is stopped by a signal" in message


def test_who_does_not_wait_is_the_culprit_of_two() -> None:
    """With two hosts there is no majority, but only one of them waits in a collective."""
    two = {p: r for p, r in answers(s0h1={"stacks": STUCK}).items() if p.slice == 0}
    culprits, message = judge(two)
    assert culprits == [Place(0, 1)]
    assert "slice 0 host 1 is in app/data.py:12 in read_shard" in message


def test_the_odd_one_out_of_programs_without_jax() -> None:
    """Where nobody is in a framework's call, the smallest group is."""
    other = WAITING.replace("/jax/", "/own/")
    changed = {f"s{p.slice}h{p.host}": {"stacks": other} for p in PLACES}
    assert judge(answers(**changed | {"s0h0": {"stacks": STUCK}}))[0] == [Place(0, 0)]


def test_who_does_not_answer_is_the_culprit() -> None:
    """A process in an uninterruptible call of a driver runs no handler."""
    silent = {"stacks": "no stacks: the process does not answer", "process_state": "D"}
    assert judge(answers(s1h1=silent))[0] == [Place(1, 1)]


def test_nobody_is_blamed_without_a_difference() -> None:
    """All in the same collective: the network or a device, which no stack shows."""
    culprits, message = judge(answers())
    assert culprits == []
    assert message.startswith("No host stands out: all are where slice 0 host 0 is")


def hanging() -> Simulation:
    """A world that trains, of which an agent raises the alarm."""
    simulation = Simulation(config())
    simulation.start()
    for agent in simulation.agents.values():
        agent.advance(simulation.now_ms, phase=Phase.TRAIN, step=7, step_at_ms=simulation.now_ms)
    simulation.settle()
    simulation.now_ms += 20_000
    alarm = "no step after step 7 for 20.0 s"
    simulation.agents[PLACES[2]].advance(simulation.now_ms, stalled=alarm, stacks=WAITING)
    simulation.settle()
    return simulation


def test_an_alarm_asks_everybody_and_names_the_culprit() -> None:
    """The world goes on until all have answered; then the stuck host is named, not the alarm's."""
    simulation = hanging()
    assert simulation.core.stage is Stage.RUNNING
    asked = {
        place
        for place, agent in simulation.agents.items()
        if any(isinstance(order, Stacks) for order in agent.orders)
    }
    assert asked == set(PLACES)
    for place, agent in simulation.agents.items():
        agent.advance(simulation.now_ms, stacks=STUCK if place == PLACES[1] else WAITING)
    simulation.settle()
    (loss,) = simulation.events(EventKind.LOSS)
    assert (loss.data["cause"], loss.data["slice"], loss.data["host"]) == (Cause.HANG, 0, 1)
    assert loss.data["detectedAtMs"] - loss.data["onsetAtMs"] >= 20_000
    assert "read_shard" in loss.data["message"]
    assert {agent.live_generation for agent in simulation.agents.values()} == {2}


def test_silence_does_not_hold_up_the_verdict() -> None:
    """Who has not answered within the time is not waited for."""
    simulation = hanging()
    simulation.wait(hangs.INQUIRY_MS + 500)
    (loss,) = simulation.events(EventKind.LOSS)
    assert loss.data["cause"] == Cause.HANG
    assert {agent.live_generation for agent in simulation.agents.values()} == {2}


def test_peers_that_give_up_meanwhile_are_not_to_blame() -> None:
    """JAX's heartbeat ends the others while the inquiry runs: the hung one is named."""
    simulation = hanging()
    stopped = {"process_state": "T", "stacks": "no stacks: the process does not answer"}
    simulation.agents[PLACES[1]].advance(simulation.now_ms, **stopped)
    simulation.agents[PLACES[0]].end(simulation.now_ms, exit_code=ExitCode.PEER_LOST)
    simulation.settle()
    (loss,) = simulation.events(EventKind.LOSS)
    assert (loss.data["cause"], loss.data["slice"], loss.data["host"]) == (Cause.HANG, 0, 1)


SAVING = """Current thread 0x00007f0000000002 [MainThread] (most recent call first):
  File "/usr/lib/python3.13/threading.py", line 359 in wait
  File "/tpujob_checkpoint/saving.py", line 220 in _await_previous
"""
PULSE = """Current thread 0x00007f0000000002 [MainThread] (most recent call first):
  File "/site-packages/tpujob_checkpoint/distributed.py", line 239 in _get
"""


def judged(waiter: dict[str, object], *others: dict[str, object]) -> Simulation:
    """A world that stands still while its first host waits for a save; all have told."""
    simulation = hanging()
    told = [{"stacks": SAVING, "waits_for_save": True} | waiter, *others]
    told += [{}] * (len(PLACES) - len(told))
    for place, changed in zip(PLACES, told, strict=True):
        fields = {"stacks": WAITING, **changed}
        simulation.agents[place].advance(simulation.now_ms, **fields)
    simulation.settle()
    return simulation


def excuses(simulation: Simulation) -> set[Place]:
    """Hosts that were excused."""
    return {
        place
        for place, agent in simulation.agents.items()
        if any(isinstance(order, Excuse) for order in agent.orders)
    }


def test_hosts_that_wait_for_one_that_waits_for_its_save_are_excused() -> None:
    """In a collective, or in an exchange of our own; the world trains on."""
    simulation = judged({}, {"stacks": PULSE})
    assert simulation.events(EventKind.LOSS) == []
    assert excuses(simulation) == set(PLACES)
    # The alarm is raised again, and another time excused, as long as the save lasts.
    simulation.agents[PLACES[2]].advance(simulation.now_ms, stalled="once more", stacks=WAITING)
    simulation.settle()
    simulation.wait(hangs.INQUIRY_MS + 500)
    assert simulation.events(EventKind.LOSS) == []
    excused = [o for o in simulation.agents[PLACES[2]].orders if isinstance(o, Excuse)]
    assert len(excused) == 2
    assert simulation.core.stage is Stage.RUNNING


def test_an_alarm_that_was_sent_before_the_excuse_arrived_ends_nothing() -> None:
    """It opens another inquiry; by the end of it the save has ended, and nobody is stalled."""
    simulation = judged({})
    calm = {"stalled": "", "waits_for_save": False, "stacks": ""}
    alarmed = simulation.agents[PLACES[2]]
    alarmed.advance(simulation.now_ms, stalled="late", stacks=WAITING)
    simulation.settle()
    for agent in simulation.agents.values():
        agent.advance(simulation.now_ms, **calm)
    simulation.settle()
    simulation.wait(hangs.INQUIRY_MS + 500)
    assert simulation.events(EventKind.LOSS) == []


@pytest.mark.parametrize(
    ("waiter", "other", "culprit"),
    [
        ({}, {"stacks": STUCK}, 1),
        ({}, {"stacks": NO_ANSWER}, 1),
        ({}, {"stacks": NO_ANSWER, "process_state": "T"}, 1),
        ({"stalled": "waits for a save for 1801 s"}, {}, 0),
    ],
    ids=["in its own code", "silent", "stopped", "a save beyond its limit"],
)
def test_who_hangs_beside_a_save_is_named(
    waiter: dict[str, object], other: dict[str, object], culprit: int
) -> None:
    """A host that waits for a save excuses only those who wait for it."""
    simulation = judged(waiter, other)
    (loss,) = simulation.events(EventKind.LOSS)
    named = Place(loss.data["slice"], loss.data["host"])
    assert loss.data["cause"] == Cause.HANG
    assert (named, excuses(simulation)) == (PLACES[culprit], set())
