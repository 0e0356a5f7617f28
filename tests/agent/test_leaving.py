"""SIGTERM while no coordinator is there, and a pod without room: with real processes."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.rig import Rig, rig
from tests.agent.test_checkpointer import start as start_example
from tests.waiting import wait_until
from tpujob_agent.protocol import Env, EventKind, ExitCode

#: Saves when it is told to go, by SIGTERM or by the coordinator; not at all with "deaf".
PROGRAM = f"""
import signal, sys, time
import tpujob
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append("SIGTERM"))
tpujob.restored(0)
for step in range(1, 1_000_000):
    time.sleep(0.02)
    tpujob.step(step, loss=1 / step)
    wish = tpujob.save_request()
    if wish.then_leave and wish.step == step:
        told.append("request")
    if told and "deaf" not in sys.argv:
        print("saved because of", told[0], flush=True)
        sys.exit({ExitCode.PREEMPTED:d})
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Rig]:
    """A job of one host."""
    with rig(tmp_path, slices=1, hosts=1) as made:
        yield made


def test_without_a_coordinator_the_program_is_told_to_go(job: Rig) -> None:
    """It saves by itself, and the agent ends when it has."""
    job.start([sys.executable, "-c", PROGRAM])
    job.wait_event(EventKind.PROGRESS)
    job.kill_coordinator()
    wait_until(lambda: "no connection" in job.agents[0, 0].text, "the agent is alone")
    job.agents[0, 0].kill(signal.SIGTERM)
    assert job.agents[0, 0].wait() == 128 + signal.SIGTERM
    assert "saved because of SIGTERM" in job.agents[0, 0].text


def test_a_connection_that_breaks_on_the_way_out_is_no_reason_to_kill(job: Rig) -> None:
    """A drain takes the coordinator's pod as well: a moment after, no connection is left."""
    job.start([sys.executable, "-c", PROGRAM])
    job.wait_event(EventKind.PROGRESS)
    assert job.coordinator is not None
    job.coordinator.kill(signal.SIGSTOP)  # it answers nothing any more
    job.agents[0, 0].kill(signal.SIGTERM)
    wait_until(lambda: "SIGTERM: leaving" in job.agents[0, 0].text, "the agent leaves")
    job.kill_coordinator()
    assert job.agents[0, 0].wait() == 128 + signal.SIGTERM
    assert "saved because of SIGTERM" in job.agents[0, 0].text


def test_with_a_coordinator_the_program_is_asked_and_not_told(job: Rig) -> None:
    """SIGTERM is for the case that nobody can ask."""
    job.start([sys.executable, "-c", PROGRAM])
    job.wait_event(EventKind.PROGRESS, count=2)
    job.agents[0, 0].kill(signal.SIGTERM)
    assert job.agents[0, 0].wait() == 128 + signal.SIGTERM
    assert "saved because of request" in job.agents[0, 0].text


def test_a_program_that_does_not_go_is_stopped_before_the_grace_period_ends(job: Rig) -> None:
    """The agent's own exit code tells that it was in time."""
    job.start([sys.executable, "-c", PROGRAM, "deaf"], env={Env.GRACE_S: "6"})
    job.wait_event(EventKind.PROGRESS)
    pid = job.trainer_pid(0, 0)
    job.kill_coordinator()
    job.agents[0, 0].kill(signal.SIGTERM)
    assert job.agents[0, 0].wait() == 128 + signal.SIGTERM
    assert "passing SIGTERM on" in job.agents[0, 0].text
    assert not Path(f"/proc/{pid}").exists()


def test_two_hosts_without_a_coordinator_save_one_step_and_go(tmp_path: Path) -> None:
    """The one that is told raises its hand: the checkpoint library has them agree."""
    with rig(tmp_path, slices=1, hosts=2) as job:
        start_example(job)
        job.wait_event(EventKind.PROGRESS, count=2)
        job.kill_coordinator()
        job.agents[0, 1].kill(signal.SIGTERM)
        assert job.agents[0, 1].wait() == 128 + signal.SIGTERM
        wait_until(lambda: "asked to leave: saved step" in job.agents[0, 0].text, "the save")


def python_with(job: Rig, *mounts: str) -> str:
    """A Python that sees small disks at these places."""
    lines = "\n".join(f"mount -t tmpfs -o size=4k none {shlex.quote(one)}" for one in mounts)
    inner = job.folder / "inner"
    inner.write_text(f'#!/bin/sh\nset -e\n{lines}\nexec {shlex.quote(sys.executable)} "$@"\n')
    outer = job.folder / "python"
    outer.write_text(f'#!/bin/sh\nexec unshare --mount {shlex.quote(str(inner))} "$@"\n')
    for path in (inner, outer):
        path.chmod(0o755)
    return str(outer)


def test_a_full_memory_disk_sends_the_record_to_the_pods_own(job: Rig) -> None:
    """Workers of the program may fill /dev/shm; training goes on."""
    python = python_with(job, "/dev/shm")
    job.start([sys.executable, "-c", PROGRAM], python=python)
    job.wait_event(EventKind.PROGRESS, count=2)


def test_a_pod_without_room_says_so_and_its_agent_lives(job: Rig) -> None:
    """The end of PID 1 would restart the container and say nothing."""
    job.run_dir(0, 0).mkdir()
    python = python_with(job, "/dev/shm", str(job.run_dir(0, 0)))
    job.start([sys.executable, "-c", PROGRAM], python=python)
    loss = job.wait_event(EventKind.LOSS)["data"]
    assert loss["cause"] == "process"
    assert "there is no room for the trainer's record" in loss["message"]
    assert "No space left on device" in loss["message"]
    assert job.agents[0, 0].popen.poll() is None
