"""Trainers that hang, and hosts that are told to go, with real processes on loopback."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.agent.rig import Rig, rig
from tests.waiting import wait_until
from tpujob_agent.protocol import Env, EventKind, ExitCode

#: Saves when asked to, and leaves if that is wanted. Three flags in its folder hold it up.
TRAINING = f"""LEAVE = {ExitCode.PREEMPTED}
import os, sys, time
import tpujob
rank = os.environ["JAX_PROCESS_ID"]
def wait_for_the_others():
    time.sleep(0.01)
def save(step):
    if rank == "0":
        with open("saved.new", "w") as file:
            file.write(str(step))
        os.replace("saved.new", "saved")
    tpujob.committed(step)
start = int(open("saved").read()) if os.path.exists("saved") else 0
tpujob.restored(start)
for step in range(start + 1, 1_000_000):
    time.sleep(0.01)
    while step >= 30 and os.path.exists("stuck-" + rank):
        time.sleep(0.01)
    tpujob.step(step, loss=1 / step)
    while step >= 30 and os.path.exists("hold"):
        wait_for_the_others()
    wish = tpujob.save_request()
    if wish.step == step:
        open("saving-" + rank, "w").close()
        while os.path.exists("slow"):
            time.sleep(0.01)
        save(step)
        if wish.then_leave:
            sys.exit(LEAVE)
"""
QUICK = {Env.HANG_MIN_S: "1", Env.HANG_FACTOR: "5"}


def start(made: Rig, **env: str) -> None:
    """Start the program on every host."""
    (made.folder / "training.py").write_text(TRAINING)
    made.start(command(made), env=env)


def command(made: Rig) -> list[str]:
    """The training program."""
    return [sys.executable, str(made.folder / "training.py")]


def test_a_stopped_trainer_is_named_and_replaced(tmp_path: Path) -> None:
    """SIGSTOP: its agent sees the state; the loss says who and why; a new generation trains."""
    with rig(tmp_path) as made:
        start(made)
        made.wait_event(EventKind.PROGRESS, count=2)
        os.kill(made.trainer_pid(1, 0), signal.SIGSTOP)
        loss = made.wait_event(EventKind.LOSS)["data"]
        assert (loss["cause"], loss["slice"], loss["host"]) == ("hang", 1, 0)
        assert "slice 1 host 0 is stopped by a signal (SIGSTOP)" in loss["message"]
        made.wait_event(EventKind.RESTORED, generation=2)


def test_a_stuck_main_thread_is_named_by_its_stack(tmp_path: Path) -> None:
    """One host is stuck in its own code, the others wait: everybody's stacks tell who it is."""
    with rig(tmp_path) as made:
        (tmp_path / "hold").touch()
        (tmp_path / "stuck-2").touch()
        start(made, **QUICK)
        loss = made.wait_event(EventKind.LOSS)["data"]
        (tmp_path / "hold").unlink()
        (tmp_path / "stuck-2").unlink()
        assert (loss["cause"], loss["slice"], loss["host"]) == ("hang", 1, 0)
        assert "training.py:" in loss["message"]
        made.wait_event(EventKind.PROGRESS, generation=2)


def test_a_hung_trainer_is_killed_without_a_coordinator(tmp_path: Path) -> None:
    """The agent alone ends what hangs and says why; the next coordinator starts it anew."""
    with rig(tmp_path, slices=1, hosts=1) as made:
        start(made, **QUICK)
        made.wait_event(EventKind.PROGRESS, count=2)
        made.kill_coordinator()
        (tmp_path / "stuck-0").touch()
        agent = made.agents[0, 0]
        wait_until(lambda: "killing the trainer: no step after" in agent.text, "the agent acts")
        assert "training.py" in agent.text
        (tmp_path / "stuck-0").unlink()
        made.start_coordinator()
        made.wait_event(EventKind.PROGRESS, generation=2)


def test_a_deleted_pod_costs_no_step(tmp_path: Path) -> None:
    """SIGTERM: everybody saves at one step and exits; the next generation goes on from it."""
    with rig(tmp_path) as made:
        start(made)
        made.wait_event(EventKind.PROGRESS, count=2)
        made.agents[1, 1].kill(signal.SIGTERM)
        loss = made.wait_event(EventKind.LOSS)["data"]
        assert (loss["cause"], loss["slice"], loss["host"]) == ("preemption", 1, 1)
        assert made.agents[1, 1].wait() == 128 + signal.SIGTERM
        made.start_agent(1, 1, command(made), env={Env.POD_NAME: "another-pod"})
        restored = made.wait_event(EventKind.RESTORED, generation=2)["data"]["step"]
        committed = made.wait_event(EventKind.COMMITTED)["data"]["step"]
        assert restored == committed == loss["step"] > 0


def test_a_deleted_pod_costs_no_step_when_the_coordinator_goes_meanwhile(tmp_path: Path) -> None:
    """The next one hears again who has to go, and charges neither the user nor the node."""
    with rig(tmp_path) as made:
        (tmp_path / "slow").touch()
        start(made)
        made.wait_event(EventKind.PROGRESS, count=2)
        made.agents[1, 1].kill(signal.SIGTERM)
        wait_until(lambda: len([*tmp_path.glob("saving-*")]) == 4, "all begin to save")
        made.kill_coordinator()
        made.start_coordinator()
        made.wait_event(EventKind.GENERATION_STARTED, adopted=True)
        (tmp_path / "slow").unlink()
        loss = made.wait_event(EventKind.LOSS)["data"]
        assert (loss["cause"], loss["slice"], loss["host"]) == ("preemption", 1, 1)
        assert made.agents[1, 1].wait() == 128 + signal.SIGTERM
        assert made.wait_event(EventKind.COMMITTED)["data"]["step"] == loss["step"] > 0


def test_a_program_that_does_not_save_on_request_is_not_waited_for(tmp_path: Path) -> None:
    """It would only lose more steps: the world ends at once, and the pod is gone."""
    with rig(tmp_path) as made:
        (tmp_path / "training.py").write_text(
            "import time, tpujob\n"
            "for step in range(1, 1_000_000):\n"
            "    time.sleep(0.01)\n"
            "    tpujob.step(step)\n"
        )
        made.start(command(made))
        made.wait_event(EventKind.PROGRESS, count=2)
        made.agents[0, 0].kill(signal.SIGTERM)
        loss = made.wait_event(EventKind.LOSS)
        drained = made.wait_event(EventKind.DRAINING)
        assert loss["data"]["cause"] == "preemption"
        assert loss["seq"] <= drained["seq"] + 2
        assert made.agents[0, 0].wait() == 128 + signal.SIGTERM


def test_a_suspended_job_saves_before_it_goes(tmp_path: Path) -> None:
    """SIGTERM to all pods, the coordinator's too: the next start goes on from the last step."""
    with rig(tmp_path) as made:
        start(made)
        made.wait_event(EventKind.PROGRESS, count=2)
        assert made.coordinator is not None
        made.coordinator.kill(signal.SIGTERM)
        for agent in made.agents.values():
            agent.kill(signal.SIGTERM)
        assert {agent.wait() for agent in made.agents.values()} == {128 + signal.SIGTERM}
        assert made.coordinator.wait() == 128 + signal.SIGTERM
        committed = made.events(EventKind.COMMITTED)[-1]["data"]["step"]
        loss = made.wait_event(EventKind.LOSS)["data"]
        assert loss["cause"] == "preemption"
        assert int((tmp_path / "saved").read_text()) == committed == loss["step"]


def test_a_coordinator_that_goes_alone_takes_nobody_along(tmp_path: Path) -> None:
    """Its eviction is no farewell: the trainers go on, and the next coordinator finds them."""
    with rig(tmp_path, slices=1) as made:
        start(made)
        made.wait_event(EventKind.PROGRESS, count=2)
        before = made.trainer_pid(0, 0)
        assert made.coordinator is not None
        made.coordinator.kill(signal.SIGTERM)
        assert made.coordinator.wait() == 128 + signal.SIGTERM
        made.start_coordinator()
        made.wait_event(EventKind.GENERATION_STARTED, adopted=True, generation=1)
        assert made.trainer_pid(0, 0) == before


def test_a_host_that_goes_without_a_coordinator_stops_at_once(tmp_path: Path) -> None:
    """Nobody would ask the others to save: the pod does not use up its grace period."""
    with rig(tmp_path, slices=1, hosts=1) as made:
        start(made)
        made.wait_event(EventKind.PROGRESS, count=2)
        made.kill_coordinator()
        agent = made.agents[0, 0]
        wait_until(lambda: "no connection to the coordinator" in agent.text, "the loss")
        agent.kill(signal.SIGTERM)
        assert agent.wait() == 128 + signal.SIGTERM
        assert not (tmp_path / "saved").exists()
