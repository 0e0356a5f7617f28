"""The coordinator's state machine, fault by fault, in simulated time."""

from __future__ import annotations

import pytest

from tests.coordinator.simulation import Simulation, config
from tpujob_agent.protocol import (
    Budget,
    Cause,
    EventKind,
    ExitCode,
    Finish,
    Phase,
    Stop,
)
from tpujob_coordinator.membership import Place
from tpujob_coordinator.stages import Stage

FIRST, OTHER = Place(0, 0), Place(1, 1)


def running(**options: int) -> Simulation:
    """A job whose first generation runs."""
    simulation = Simulation(config(**options))
    simulation.start()
    assert simulation.core.stage is Stage.RUNNING
    return simulation


def test_a_world_is_formed_of_whole_slices_only() -> None:
    """As long as one host of a slice is missing, nobody starts."""
    simulation = Simulation(config())
    for place in simulation.places[:-1]:
        simulation.connect(simulation.boot(place))
    simulation.settle()
    simulation.wait(2000)
    assert not simulation.events(EventKind.GENERATION_STARTED)
    simulation.connect(simulation.boot(simulation.places[-1]))
    simulation.settle()
    assert [agent.live_generation for agent in simulation.agents.values()] == [1, 1, 1, 1]


def test_the_world_is_ordered_by_slice_and_host() -> None:
    """Process ids, slice ids and the leader follow from the members' places alone."""
    simulation = running()
    world = simulation.core.world
    assert world is not None
    runs = [world.run_of(place) for place in simulation.places]
    assert [run.process_id for run in runs] == [0, 1, 2, 3]
    assert [run.slice_id for run in runs] == [0, 0, 1, 1]
    assert {run.leader for run in runs} == {"10.0.0.0:20001"}


def test_a_killed_trainer_ends_the_generation_and_is_named() -> None:
    """The others are stopped at once, and the loss names the killed process, not its followers."""
    simulation = running()
    simulation.agents[OTHER].end(simulation.now_ms, exit_code=ExitCode.PEER_LOST)
    simulation.agents[FIRST].end(simulation.now_ms + 5, signal=9)
    simulation.now_ms += 10
    simulation.settle()
    (loss,) = simulation.events(EventKind.LOSS)
    assert loss.data["cause"] == Cause.PROCESS
    assert (loss.data["slice"], loss.data["host"], loss.data["signal"]) == (0, 0, 9)
    assert loss.data["onsetAtMs"] <= loss.data["detectedAtMs"] <= loss.at_ms
    assert simulation.core.stage is Stage.RUNNING
    assert {agent.live_generation for agent in simulation.agents.values()} == {2}


def test_the_others_are_stopped_before_the_culprit_is_known() -> None:
    """A follower's exit stops the world at once; only the verdict waits."""
    simulation = running()
    simulation.agents[OTHER].end(simulation.now_ms, exit_code=ExitCode.PEER_LOST)
    simulation.deliver_from(simulation.agents[OTHER])
    assert isinstance(simulation.agents[FIRST].inbox[0], Stop)
    assert not simulation.events(EventKind.LOSS)


def test_a_silent_member_is_a_lost_node() -> None:
    """A member whose stream is open but says nothing is lost after the timeout."""
    simulation = running()
    quiet = simulation.agents.pop(OTHER)
    simulation.wait(8000)
    (loss,) = simulation.events(EventKind.LOSS)
    assert loss.data["cause"] == Cause.NODE
    assert simulation.core.stage is Stage.FORMING
    assert quiet.live_generation == 1
    assert [a.live_generation for a in simulation.agents.values()] == [0, 0, 0]


def test_a_broken_stream_that_comes_back_disturbs_nothing() -> None:
    """Losing the connection for a second is not losing the member."""
    simulation = running()
    simulation.disconnect(simulation.agents[OTHER])
    simulation.wait(1000)
    simulation.connect(simulation.agents[OTHER])
    simulation.settle()
    simulation.wait(5000)
    simulation.settle()
    assert not simulation.events(EventKind.LOSS)
    assert simulation.agents[OTHER].live_generation == 1


def test_a_restarted_container_rejoins_in_the_next_generation() -> None:
    """A new incarnation at a place means that the old process is gone."""
    simulation = running()
    simulation.connect(simulation.boot(OTHER))
    simulation.settle()
    (loss,) = simulation.events(EventKind.LOSS)
    assert (loss.data["cause"], loss.data["message"]) == (Cause.NODE, "its container was restarted")
    assert {agent.live_generation for agent in simulation.agents.values()} == {2}


def test_a_superseded_agent_is_refused() -> None:
    """An old pod that lives on cannot take its place back."""
    simulation = running()
    old = simulation.agents[OTHER]
    simulation.connect(simulation.boot(OTHER, new_pod=True))
    simulation.settle()
    simulation.connect(old)
    assert "another agent" in simulation.refusals[-1]
    assert simulation.core.stage is Stage.RUNNING


def test_leaving_ends_the_generation_as_preemption() -> None:
    """A pod that gets SIGTERM says so, and is charged to the infrastructure."""
    simulation = running()
    leaver = simulation.agents[OTHER]
    leaver.leave(simulation.now_ms)
    simulation.settle()
    kinds = [event.kind for event in simulation.events()]
    assert kinds.index(EventKind.DRAINING) < kinds.index(EventKind.LOSS)
    assert simulation.events(EventKind.LOSS)[0].data["cause"] == Cause.PREEMPTION
    assert simulation.core.stage is Stage.FORMING
    assert simulation.core.budgets.used == {"infrastructure": 1}
    simulation.connect(simulation.boot(OTHER, new_pod=True))
    simulation.settle()
    assert {agent.live_generation for agent in simulation.agents.values()} == {2}


def test_user_errors_back_off_and_end() -> None:
    """A program that fails at once is tried as often as its budget says, ever more slowly."""
    simulation = running(userError=3)
    for _ in range(4):
        simulation.agents[FIRST].end(simulation.now_ms, exit_code=1, tail="boom")
        simulation.settle()
        if simulation.core.stage is not Stage.GAVE_UP:
            simulation.wait(max(1, simulation.core.backoff_until_ms - simulation.now_ms))
            simulation.settle()
    waits = [e.data["untilAtMs"] - e.at_ms for e in simulation.events(EventKind.BACKOFF)]
    assert waits == [1000, 2000]  # the first restart is at once
    (given_up,) = simulation.events(EventKind.GAVE_UP)
    assert given_up.data["budget"] == Budget.USER_ERROR
    assert "boom" in given_up.data["message"]
    assert "allows 3 restarts" in given_up.data["message"]
    simulation.calm()
    assert not any(agent.live_generation for agent in simulation.agents.values())


def test_restarts_without_a_commit_end_the_job() -> None:
    """Kills are unlimited here, but five restarts without a new checkpoint are enough."""
    simulation = running(noProgress=5)
    for _ in range(6):
        simulation.agents[FIRST].end(simulation.now_ms, signal=9)
        simulation.calm(40)
    (given_up,) = simulation.events(EventKind.GAVE_UP)
    assert given_up.data["budget"] == Budget.NO_PROGRESS


def test_a_commit_renews_the_patience() -> None:
    """A newly committed step starts the count of fruitless restarts anew."""
    simulation = running(noProgress=2)
    for number in range(1, 7):
        simulation.agents[FIRST].advance(
            simulation.now_ms,
            restored_step=0,
            first_step=1,
            step=number * 10,
            committed_step=number * 10,
        )
        simulation.settle()
        simulation.agents[FIRST].end(simulation.now_ms, signal=9)
        simulation.settle()
    assert simulation.core.stage is Stage.RUNNING
    assert not simulation.events(EventKind.BACKOFF)


def test_success_of_all_finishes_the_job() -> None:
    """Exits with 0 one after the other are no loss; the last one finishes the job."""
    simulation = running()
    for place in simulation.places:
        assert simulation.core.stage is Stage.RUNNING
        simulation.agents[place].end(simulation.now_ms, exit_code=0)
        simulation.settle()
    assert simulation.core.stage is Stage.FINISHED
    assert not simulation.events(EventKind.LOSS)
    sent = simulation.core.finish()
    assert [type(effect.message) for effect in sent] == [Finish] * 4


def test_a_member_that_is_done_may_go() -> None:
    """The node of a process that has exited 0 is not needed any more."""
    simulation = running()
    simulation.agents[OTHER].end(simulation.now_ms, exit_code=0)
    simulation.settle()
    simulation.disconnect(simulation.agents.pop(OTHER))
    simulation.wait(4000)
    simulation.settle()
    for agent in simulation.agents.values():
        agent.end(simulation.now_ms, exit_code=0)
    simulation.settle()
    assert simulation.core.stage is Stage.FINISHED


def test_progress_is_told_in_order() -> None:
    """Restored, then the first step by itself, then steps, then the commit that covers them."""
    simulation = running()
    started = simulation.now_ms
    simulation.now_ms += 5000
    for agent in simulation.agents.values():
        agent.advance(
            simulation.now_ms,
            phase=Phase.TRAIN,
            phase_at_ms=started + 900,
            restored_step=40,
            first_step=41,
            first_step_at_ms=started + 1000,
            step=60,
            step_at_ms=started + 4000,
            tokens=200,
            flops_per_token=6,
            committed_step=60,
            committed_at_ms=started + 4500,
            commit_blocked_ms=30,
            commit_lag_ms=1_500,
            losses=[[41, 3.0], [60, 2.5]],
        )
    simulation.settle()
    told = [e for e in simulation.events() if e.at_ms > started and e.kind != EventKind.PHASE]
    assert [event.kind for event in told] == [
        EventKind.RESTORED,
        EventKind.PROGRESS,
        EventKind.PROGRESS,
        EventKind.COMMITTED,
    ]
    restored, first, second, committed = (event.data for event in told)
    assert restored["step"] == 40
    assert (first["firstStep"], first["lastStep"]) == (41, 41)
    assert first["endedAtMs"] == started + 1000
    assert (second["firstStep"], second["lastStep"]) == (42, 60)
    assert (first["tokens"], second["tokens"]) == (10, 190)
    assert second["flopsPerToken"] == 6
    assert (first["loss"], second["loss"]) == (3.0, 2.5)
    assert (committed["step"], committed["committedAtMs"]) == (60, started + 4500)
    assert (committed["blockedMs"], committed["lagMs"]) == (30, 1_500)


def test_a_commit_whose_cost_is_not_known_says_nothing_of_it() -> None:
    """Programs need not tell, and no number is made up for them."""
    simulation = running()
    for agent in simulation.agents.values():
        agent.advance(simulation.now_ms, restored_step=0, first_step=1, step=5, committed_step=5)
    simulation.settle()
    (committed,) = simulation.events(EventKind.COMMITTED)
    assert committed.data.keys() == {"step", "committedAtMs"}


def test_steps_are_told_before_their_phase_ends() -> None:
    """The last steps belong to training, not to the final save that follows."""
    simulation = running()
    for fields in (
        {"phase": Phase.TRAIN, "phase_at_ms": 1, "first_step": 1, "step": 1},
        {"step": 9},
        {"phase": Phase.FINISHING, "phase_at_ms": 2},
    ):
        for agent in simulation.agents.values():
            agent.advance(simulation.now_ms, restored_step=0, **fields)
        simulation.settle()
    last, finishing = simulation.events()[-2:]
    assert (last.kind, last.data["lastStep"]) == (EventKind.PROGRESS, 9)
    assert (finishing.kind, finishing.data["phase"]) == (EventKind.PHASE, Phase.FINISHING)


def test_who_said_goodbye_is_gone_at_once() -> None:
    """A leaving agent's broken stream is no blip."""
    simulation = running()
    leaver = simulation.agents[OTHER]
    leaver.leave(simulation.now_ms)
    simulation.settle()
    simulation.disconnect(simulation.agents.pop(OTHER))
    simulation.tick(250)
    assert simulation.events(EventKind.MEMBER_LEFT)
    assert simulation.core.stage is Stage.FORMING


def test_a_program_that_reports_nothing_is_restored_before_its_first_step() -> None:
    """Where only steps are known, the cut of lost steps is inferred from the first of them."""
    simulation = running()
    simulation.agents[FIRST].advance(simulation.now_ms, first_step=31, step=31)
    simulation.settle()
    assert simulation.events(EventKind.RESTORED)[0].data["step"] == 30
    assert simulation.events(EventKind.PHASE)[-1].data["phase"] == Phase.TRAIN


def test_a_new_coordinator_leaves_a_running_world_alone() -> None:
    """It adopts the generation under its number and tells the operator where things stand."""
    simulation = running()
    for agent in simulation.agents.values():
        agent.advance(
            simulation.now_ms,
            phase=Phase.TRAIN,
            phase_at_ms=1,
            restored_step=0,
            first_step=1,
            step=7,
        )
    simulation.settle()
    simulation.restart_coordinator()
    for agent in simulation.agents.values():
        simulation.connect(agent)
    simulation.settle()
    simulation.wait(3000)
    simulation.settle()
    (started,) = simulation.events(EventKind.GENERATION_STARTED)
    assert (started.data["generation"], started.data["adopted"]) == (1, True)
    assert {agent.live_generation for agent in simulation.agents.values()} == {1}
    assert simulation.events(EventKind.PHASE)[-1].data["phase"] == Phase.TRAIN
    assert [e.data["lastStep"] for e in simulation.events(EventKind.PROGRESS)] == [7]


def test_a_new_coordinator_ends_a_world_that_lost_a_member_meanwhile() -> None:
    """Remains of a world are stopped before the next one is formed."""
    simulation = running()
    simulation.restart_coordinator()
    simulation.boot(OTHER)
    for agent in simulation.agents.values():
        simulation.connect(agent)
    simulation.settle()
    assert [e.data["generation"] for e in simulation.events(EventKind.LOSS)] == [1]
    assert {agent.live_generation for agent in simulation.agents.values()} == {2}


def test_a_new_coordinator_finishes_a_finished_job() -> None:
    """Agents that wait with an exit code of 0 are enough to know that the job is done."""
    simulation = running()
    for agent in simulation.agents.values():
        agent.end(simulation.now_ms, exit_code=0)
    simulation.settle()
    simulation.restart_coordinator()
    for agent in simulation.agents.values():
        simulation.connect(agent)
    simulation.settle()
    assert simulation.core.stage is Stage.FINISHED


def test_a_held_up_coordinator_blames_nobody() -> None:
    """Having been frozen itself, it must not take its members for silent."""
    simulation = running()
    simulation.now_ms += 60_000
    simulation.route(simulation.core.tick(simulation.now_ms))
    assert simulation.core.stage is Stage.RUNNING
    assert not simulation.events(EventKind.LOSS)


def test_a_spare_slice_takes_over() -> None:
    """With a spare, the next world does not wait for the lost slice."""
    simulation = Simulation(config(slices=2, spares=1))
    simulation.start()
    simulation.disconnect(simulation.agents.pop(OTHER))
    simulation.wait(3000)
    simulation.settle()
    assert simulation.core.world is not None
    assert simulation.core.world.slices == (0, 2)
    assert simulation.agents[Place(1, 0)].live_generation == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slice": 2}, "no slice 2"),
        ({"host": -1}, "no slice"),
        ({"protocol": 99}, "protocol 99"),
        ({"attempt": 7}, "attempt 7"),
    ],
)
def test_strangers_are_refused(changes: dict[str, int | str], words: str) -> None:
    """Who is not of this job and attempt gets a reason and never becomes a member."""
    simulation = Simulation(config())
    agent = simulation.boot(FIRST)
    simulation.connect(agent, **changes)
    assert not simulation.core.members
    assert words in simulation.refusals[-1]
