"""Smaller worlds and fences, with real processes on loopback."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from tests.agent.rig import Rig, rig
from tests.waiting import wait_until
from tpujob_agent.protocol import Env, EventKind, ExitCode

#: Writes down what it sees of its world; saves when asked to, and leaves if that is wanted.
TRAINING = f"""LEAVE = {ExitCode.PREEMPTED}
import json, os, sys, time
import tpujob
names = [n for n in os.environ if n.startswith("MEGASCALE_") or n in ("{Env.NUM_SLICES}",)]
with open("world-" + os.environ["{Env.GENERATION}"] + "-" + os.environ["{Env.SLICE}"], "w") as file:
    json.dump({{name: os.environ[name] for name in names}}, file)
start = int(open("saved").read()) if os.path.exists("saved") else 0
tpujob.restored(start)
for step in range(start + 1, 1_000_000):
    time.sleep(0.01)
    tpujob.step(step, loss=1 / step)
    wish = tpujob.save_request()
    if wish.step == step:
        if os.environ["JAX_PROCESS_ID"] == "0":
            with open("saved.new", "w") as file:
                file.write(str(step))
            os.replace("saved.new", "saved")
        tpujob.committed(step)
        if wish.then_leave:
            sys.exit(LEAVE)
"""
MEGASCALE = {
    "MEGASCALE_NUM_SLICES": "2",
    "MEGASCALE_SLICE_ID": "0",
    "MEGASCALE_COORDINATOR_ADDRESS": "nobody",
    "MEGASCALE_PORT": "8080",
}


def start(made: Rig) -> list[str]:
    """Start the program on every host; returns its command."""
    (made.folder / "training.py").write_text(TRAINING)
    command = [sys.executable, str(made.folder / "training.py")]
    made.start(command, env=MEGASCALE)
    return command


def seen(made: Rig, generation: int, slice_index: int) -> dict[str, str]:
    """What a trainer saw of its world."""
    path = made.folder / f"world-{generation}-{slice_index}"
    environment: dict[str, str] = json.loads(path.read_text())
    return environment


def test_a_job_goes_on_without_slice_0_and_grows_again(tmp_path: Path) -> None:
    """2 → 1 → 2 slices: another leader, a world of one slice, and not a step lost on growing."""
    with rig(tmp_path, hosts=1, smaller_worlds=[1], replacement_timeout_ms=500) as made:
        command = start(made)
        made.wait_event(EventKind.PROGRESS, count=2)
        made.agents[0, 0].kill(signal.SIGKILL)
        made.agents[0, 0].wait()
        made.wait_event(EventKind.GENERATION_STARTED, slices=[1], wantedSlices=2)
        made.wait_event(EventKind.PROGRESS, generation=2, count=2)
        made.start_agent(0, 0, command, env={Env.POD_NAME: "another-pod"} | MEGASCALE)
        left = made.wait_event(EventKind.GENERATION_LEFT)["data"]["step"]
        made.wait_event(EventKind.GENERATION_STARTED, generation=3, slices=[0, 1])
        restored = made.wait_event(EventKind.RESTORED, generation=3)["data"]["step"]
        made.wait_event(EventKind.PROGRESS, generation=3)
        assert restored == left > 0
        assert len(made.events(EventKind.LOSS)) == 1
        assert seen(made, 2, 1) == {Env.NUM_SLICES: "1"}
        assert seen(made, 3, 1) == {
            Env.NUM_SLICES: "2",
            "MEGASCALE_NUM_SLICES": "2",
            "MEGASCALE_SLICE_ID": "1",
            "MEGASCALE_COORDINATOR_ADDRESS": "127.0.0.1",
            "MEGASCALE_PORT": "8080",
        }


def test_a_world_that_can_be_replaced_stops_without_a_coordinator(tmp_path: Path) -> None:
    """With a spare that might train by now, being alone too long ends the trainer."""
    with rig(tmp_path, slices=1, hosts=1, spares=1, fence_s=1) as made:
        start(made)
        made.wait_event(EventKind.PROGRESS, count=2)
        made.kill_coordinator()
        agent = made.agents[0, 0]
        wait_until(lambda: "others may train by now" in agent.text, "the agent stops its trainer")
        made.start_coordinator()
        made.wait_event(EventKind.PROGRESS, generation=2)
