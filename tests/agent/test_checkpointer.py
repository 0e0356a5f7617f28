"""Checkpoints of a training loop that is not ours: the example of docs/checkpoints.md."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.agent.rig import ROOT, Rig, rig
from tests.waiting import wait_until
from tpujob_agent.protocol import Env, EventKind, ExitCode

#: Importing JAX and compiling took 102 s of the 120 s that a wait has, at a load of 14.
START_LIMIT_S = 600.0
EXAMPLE = ROOT / "examples" / "own_checkpoints.py"


def environment(folder: Path) -> dict[str, str]:
    """What the operator gives a pod, besides the agent's own."""
    return {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": str(ROOT / "trainer"),
        Env.PRELOAD: "jax,tpujob_checkpoint.checkpointer,tpujob_checkpoint.orbax_files",
        Env.CHECKPOINT_DIR: str(folder / "checkpoints"),
        Env.CHECKPOINT_INTERVAL: "steps:1000000",
    }


def start(job: Rig) -> None:
    """Both hosts, each with memory of its own; on a busy machine JAX takes minutes to begin."""
    job.start_coordinator()
    for host in range(2):
        memory = {Env.SNAPSHOT_DIR: str(job.folder / f"memory-{host}")}
        command = [sys.executable, str(EXAMPLE), "1000000"]
        job.start_agent(0, host, command, env=environment(job.folder) | memory)
    job.wait_event(EventKind.PROGRESS, limit_s=START_LIMIT_S)


def losses(job: Rig) -> dict[int, set[str]]:
    """By step, what the leader printed for it; one and the same, however often."""
    found: dict[int, set[str]] = {}
    for step, loss in re.findall(r"^step (\d+) loss (\S+)$", job.agents[0, 0].text, re.MULTILINE):
        found.setdefault(int(step), set()).add(loss)
    return found


def snapshots(job: Rig) -> set[str]:
    """Steps that both hosts hold in memory."""
    held = [{p.stem for p in job.folder.glob(f"memory-{h}/*.snapshot")} for h in range(2)]
    return set.intersection(*held)


#: The example, whose leader looks at what it has written on a disk that is slow for it alone.
#: With "alone", the others do not wait for it, nor say so: they meet it in the next collective.
SLOW = f"""import contextlib, os, runpy, sys, time
import tpujob
from tpujob_checkpoint.checkpoint import Checkpoints
from tpujob_checkpoint.saving import Saver
rank = os.environ["JAX_PROCESS_ID"]
look, wait = Checkpoints._require_written, tpujob.waiting_for_save
def look_slowly(self, path):
    while os.path.exists("slow"):
        time.sleep(0.01)
    look(self, path)
@contextlib.contextmanager
def shown_wait():
    open("waits-" + rank, "w").close()
    with wait():
        yield
    os.unlink("waits-" + rank)
def await_own(self, step):
    if not self._durable.done():
        with tpujob.waiting_for_save():
            self._durable.result()
Checkpoints._require_written = look_slowly
tpujob.waiting_for_save = shown_wait
if sys.argv[1] == "alone":
    Saver._await_previous = await_own
sys.argv = [{str(EXAMPLE)!r}, "1000000"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
HANG_S = 12.0


def start_slow(job: Rig, mode: str) -> None:
    """A world whose first save takes as long as a file is there."""
    (job.folder / "slow").touch()
    (job.folder / "training.py").write_text(SLOW)
    settings = {Env.CHECKPOINT_INTERVAL: "steps:5", Env.HANG_MIN_S: str(HANG_S)}
    command = [sys.executable, str(job.folder / "training.py"), mode]
    job.start(command, env=environment(job.folder) | settings)


def waited_s(job: Rig) -> float:
    """For how long all trainers have stood still for a save."""
    try:
        since = max((job.folder / f"waits-{host}").stat().st_mtime for host in range(2))
    except FileNotFoundError:
        return 0.0
    return time.time() - since


def test_a_save_that_is_slower_than_a_hang_ends_no_world(tmp_path: Path) -> None:
    """All hosts wait for it together, for as long as it takes; then training goes on."""
    with rig(tmp_path, slices=1, hosts=2) as job:
        start_slow(job, "together")
        wait_until(lambda: waited_s(job) > 2 * HANG_S, "a wait longer than a hang", START_LIMIT_S)
        (tmp_path / "slow").unlink()
        job.wait_event(EventKind.COMMITTED, count=3, limit_s=START_LIMIT_S)
        assert job.events(EventKind.LOSS) == []
        assert "no hang" not in job.story()


def test_hosts_that_wait_for_the_one_that_saves_are_excused(tmp_path: Path) -> None:
    """In a collective, again and again, while only one host says that it waits for storage."""
    with rig(tmp_path, slices=1, hosts=2) as job:
        start_slow(job, "alone")
        other = job.agents[0, 1]
        wait_until(lambda: other.text.count("no hang:") >= 2, "two excuses", START_LIMIT_S)
        (tmp_path / "slow").unlink()
        job.wait_event(EventKind.COMMITTED, count=3, limit_s=START_LIMIT_S)
        assert job.events(EventKind.LOSS) == []


def last_event(job: Rig, kind: EventKind) -> dict[str, Any]:
    """Data of the newest event."""
    data: dict[str, Any] = job.events(kind)[-1]["data"]
    return data


def test_a_killed_leader_goes_on_from_memory_and_a_host_that_leaves_saves(tmp_path: Path) -> None:
    """No step's loss differs from what it was before the kill."""
    with rig(tmp_path, slices=1, hosts=2) as job:
        start(job)
        wait_until(lambda: len(snapshots(job)) == 2, "two snapshots on both hosts")
        os.kill(job.trainer_pid(0, 0), signal.SIGKILL)
        job.wait_event(EventKind.PROGRESS, generation=2, count=2)
        resumed = last_event(job, EventKind.RESTORED)["step"]
        assert resumed > 0
        assert f"restored step {resumed} from memory" in job.agents[0, 0].text
        assert not [step for step, found in losses(job).items() if len(found) > 1]

        job.agents[0, 1].kill(signal.SIGTERM)
        assert job.agents[0, 1].wait() == 128 + signal.SIGTERM
        wait_until(lambda: "asked to leave: saved step" in job.agents[0, 0].text, "the save")
        [saved] = re.findall(r"asked to leave: saved step (\d+)", job.agents[0, 0].text)
        assert (tmp_path / "checkpoints" / saved / "_CHECKPOINT_METADATA").exists()


@pytest.mark.parametrize(
    ("moment", "data"),
    [(EventKind.PHASE, {"phase": "restore"}), (EventKind.RESTORED, {})],
    ids=["before it has restored", "before its first step"],
)
def test_a_host_that_leaves_while_the_world_starts_again_takes_no_step_with_it(
    tmp_path: Path, moment: EventKind, data: dict[str, Any]
) -> None:
    """Nothing is on storage yet: what was restored from memory is saved after the first steps."""
    with rig(tmp_path, slices=1, hosts=2) as job:
        start(job)
        wait_until(lambda: len(snapshots(job)) == 2, "two snapshots on both hosts")
        os.kill(job.trainer_pid(0, 0), signal.SIGKILL)
        job.wait_event(moment, generation=2, **data)
        job.agents[0, 1].kill(signal.SIGTERM)
        job.wait_event(EventKind.RESTORED, generation=2)
        restored = last_event(job, EventKind.RESTORED)["step"]
        assert restored > 0
        committed = job.wait_event(EventKind.COMMITTED)["data"]["step"]
        assert committed > restored
        assert job.wait_event(EventKind.LOSS, generation=2)["data"]["cause"] == "preemption"
        assert f"asked to leave: saved step {committed}" in job.agents[0, 0].text


def test_a_directory_that_cannot_be_used_ends_the_program_in_words(tmp_path: Path) -> None:
    """At once, with the exit code of a user's error."""
    (tmp_path / "checkpoints").write_text("a file")
    with rig(tmp_path, slices=1, hosts=1) as job:
        job.start([sys.executable, str(EXAMPLE), "10"], env=environment(tmp_path))
        loss = job.wait_event(EventKind.LOSS)["data"]
        assert (loss["cause"], loss["exitCode"]) == ("userError", 1)
        assert "is not writable by user id" in loss["message"]


def test_without_the_operator_it_saves_and_resumes(tmp_path: Path) -> None:
    """No agent, no coordinator, no memory: a directory is enough; a bad checkpoint ends it."""

    def run(steps: int) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **environment(tmp_path), Env.CHECKPOINT_INTERVAL: "steps:4"}
        command = [sys.executable, str(EXAMPLE), str(steps)]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    first = run(8)
    assert first.returncode == 0, first.stderr
    second = run(10)
    assert "restored step 8 from" in second.stdout
    assert re.findall(r"^step (\d+)", second.stdout, re.MULTILINE) == ["9", "10"]
    for step in (tmp_path / "checkpoints").iterdir():
        for file in step.rglob("*") if step.name.isdecimal() else ():
            if file.is_file() and file.stat().st_size:
                file.write_bytes(bytes(b ^ 1 for b in file.read_bytes()))
    bad = run(12)
    assert bad.returncode == ExitCode.CHECKPOINT_BAD
    assert "is good" in bad.stderr
