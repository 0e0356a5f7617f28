"""A host that holds up the others, with real processes in lock-step on loopback."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any, cast

import pytest

from tests.agent.rig import Rig, rig
from tpujob_agent.protocol import METRICS_PATH, Env, EventKind, ExitCode, Finding, StragglerAction

#: Steps of 60 ms that nobody ends before the others; the leader's port is the barrier.
#: Two thirds of a step are a host's own work. A flag in its folder makes its input slow.
TRAINING = f"""import os, socket, sys, time
import tpujob
rank = int(os.environ["{Env.JAX_PROCESS_ID}"])
world = int(os.environ["{Env.JAX_NUM_PROCESSES}"])
host, port = os.environ["{Env.JAX_COORDINATOR_ADDRESS}"].rsplit(":", 1)
if rank == 0:
    listener = socket.create_server((host, int(port)), backlog=2 * world)
    peers = []
    while len(peers) < world - 1:
        peer = listener.accept()[0]
        if peer.recv(1) == b"h":  # the agents look whether somebody listens, and go
            peers.append(peer)
else:
    leader = None
    while leader is None:
        try:
            leader = socket.create_connection((host, int(port)))
        except ConnectionRefusedError:
            time.sleep(0.01)
    leader.sendall(b"h")
def exchange():
    if rank == 0:
        for peer in peers:
            assert peer.recv(1)
        for peer in peers:
            peer.sendall(b"x")
    else:
        leader.sendall(b"x")
        assert leader.recv(1)
def flag(name):
    return os.path.exists(name)
start = int(open("saved").read()) if flag("saved") else 0
tpujob.restored(start)
for step in range(start + 1, 1_000_000):
    begun = time.time()
    time.sleep(0.08 if flag(f"slow-input-{{rank}}") else 0.04)
    arrived = time.time()
    time.sleep(0.02)
    exchange()
    now = time.time()
    tpujob.step(step, input_wait_s=arrived - begun, arrived_at=arrived, wait_s=now - arrived)
    wish = tpujob.save_request()
    if wish.step == step or step == start + 5:
        if rank == 0:
            with open("saved.new", "w") as file:
                file.write(str(step))
            os.replace("saved.new", "saved")
        tpujob.committed(step)
        if wish.step == step and wish.then_leave:
            sys.exit({int(ExitCode.PREEMPTED)})
"""


def start(made: Rig) -> None:
    """Start the program on every host."""
    (made.folder / "training.py").write_text(TRAINING)
    made.start([sys.executable, str(made.folder / "training.py")])


def test_a_host_with_slow_input_is_named(tmp_path: Path) -> None:
    """With its cause, at /metrics too, and that it is over; training goes on."""
    with rig(tmp_path) as made:
        start(made)
        made.wait_event(EventKind.COMMITTED)
        (tmp_path / "slow-input-2").touch()
        found = _wait_straggler(made, 1, 0)
        assert found["node"] == "node10"
        assert found["cause"] == "input"
        url = f"http://127.0.0.1:{made.config.http_port}{METRICS_PATH}"
        with urllib.request.urlopen(url, timeout=60) as response:
            metrics = response.read().decode()
        assert 'tpujob_host_slowdown_ratio{host="1-0",job="j"' in metrics
        (tmp_path / "slow-input-2").unlink()
        made.wait_event(EventKind.FINDING, isOpen=False, slice=1, host=0)
        assert not made.events(EventKind.LOSS)


def test_a_process_that_is_stopped_again_and_again_is_named(tmp_path: Path) -> None:
    """SIGSTOP and SIGCONT: each stop is far too short for a hang."""
    with rig(tmp_path) as made:
        start(made)
        made.wait_event(EventKind.COMMITTED)
        victim, is_over = made.trainer_pid(0, 1), threading.Event()
        stopper = threading.Thread(target=_stop_and_go, args=(victim, is_over))
        stopper.start()
        try:
            _wait_straggler(made, 0, 1)
        finally:
            is_over.set()
            stopper.join()


def _wait_straggler(made: Rig, slice_index: int, host: int) -> dict[str, Any]:
    """Its finding; on a busy machine another host may be slow for a while as well."""
    found = made.wait_event(
        EventKind.FINDING, isOpen=True, finding=Finding.STRAGGLER, slice=slice_index, host=host
    )
    return cast("dict[str, Any]", found["data"])


def _stop_and_go(pid: int, is_over: threading.Event) -> None:
    """Stopped for half of the time, until it is over or the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        while not is_over.is_set():
            os.kill(pid, signal.SIGSTOP)
            is_over.wait(0.12)
            os.kill(pid, signal.SIGCONT)
            is_over.wait(0.11)


@pytest.mark.parametrize("action", [StragglerAction.RESTART, StragglerAction.REPLACE])
def test_the_policy_acts_without_losing_a_step(tmp_path: Path, action: StragglerAction) -> None:
    """All save and leave, and the incident names the straggler; a spare takes its slice's place."""
    is_replaced = action is StragglerAction.REPLACE
    with rig(tmp_path, straggler_action=action.value, spares=int(is_replaced)) as made:
        (tmp_path / "slow-input-3").touch()
        start(made)
        loss = made.wait_event(EventKind.LOSS)["data"]
        (tmp_path / "slow-input-3").unlink()
        assert (loss["cause"], loss["slice"], loss["host"]) == ("straggler", 1, 1)
        assert loss["isGivenUp"] == is_replaced
        again = made.wait_event(EventKind.GENERATION_STARTED, generation=2)["data"]
        assert again["slices"] == ([0, 2] if is_replaced else [0, 1])
        assert made.wait_event(EventKind.RESTORED, generation=2)["data"]["step"] == loss["step"]
