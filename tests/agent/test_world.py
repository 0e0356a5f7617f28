"""A real coordinator and four real agents on loopback, and what can befall them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.rig import GRACE_S, Rig, rig
from tests.waiting import wait_until
from tpujob_agent import protocol
from tpujob_agent.protocol import EventKind

TRAINING = """
import os, time
import tpujob
print({name: os.environ[name] for name in sorted(os.environ) if name.startswith(("JAX", "TPUJOB"))})
tpujob.phase("restore")
saved = "saved"
start = int(open(saved).read()) if os.path.exists(saved) else 0
tpujob.restored(start)
for step in range(start + 1, 1_000_000):
    time.sleep(0.005)
    tpujob.step(step, loss=1 / step)
    if step % 20 == 0 and os.environ["JAX_PROCESS_ID"] == "0":
        with open(saved + ".new", "w") as file:
            file.write(str(step))
        os.replace(saved + ".new", saved)
        tpujob.committed(step)
"""


@contextlib.contextmanager
def training(folder: Path) -> Iterator[Rig]:
    """Two slices of two hosts, training."""
    with rig(folder) as made:
        (folder / "training.py").write_text(TRAINING)
        made.start(command(made))
        made.wait_event(EventKind.COMMITTED)
        yield made


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Rig]:
    """A world to be hit."""
    with training(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A world that tests only look at, so that they can share it."""
    with training(tmp_path_factory.mktemp("quiet")) as made:
        yield made


def command(world: Rig) -> list[str]:
    """The training program."""
    return [sys.executable, str(world.folder / "training.py")]


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    path = Path(f"/proc/{pid}/cmdline")
    return path.exists() and bool(path.read_bytes())


def trainers(world: Rig) -> dict[tuple[int, int], int]:
    """Process ids of all trainers."""
    return {place: world.trainer_pid(*place) for place in world.agents}


def test_every_process_knows_its_place(quiet: Rig) -> None:
    """The variables of all four processes describe one quiet."""
    seen = []
    for agent in quiet.agents.values():
        line = next(line for line in agent.text.splitlines() if line.startswith("{"))
        seen.append(json.loads(line.replace("'", '"')))
    assert [env["JAX_PROCESS_ID"] for env in seen] == ["0", "1", "2", "3"]
    assert [env["TPUJOB_SLICE_ID"] for env in seen] == ["0", "0", "1", "1"]
    assert {env["JAX_NUM_PROCESSES"] for env in seen} == {"4"}
    assert {env["TPUJOB_NUM_SLICES"] for env in seen} == {"2"}
    assert {env["JAX_COORDINATOR_ADDRESS"] for env in seen} == {
        f"127.0.0.1:{quiet.config.jax_port_base + 1}"
    }


def test_a_killed_trainer_is_restarted_with_all_others(world: Rig) -> None:
    """Generation 2 restores the committed step; the agents have stayed."""
    before = trainers(world)
    os.kill(before[1, 0], signal.SIGKILL)
    world.wait_event(EventKind.PROGRESS, generation=2)
    (loss,) = world.events(EventKind.LOSS)
    assert loss["data"]["cause"] == "process"
    assert (loss["data"]["slice"], loss["data"]["host"], loss["data"]["signal"]) == (1, 0, 9)
    (restored,) = [e for e in world.events(EventKind.RESTORED) if e["data"]["generation"] == 2]
    assert restored["data"]["step"] > 0
    assert restored["data"]["step"] % 20 == 0
    after = trainers(world)
    assert not set(before.values()) & set(after.values())
    assert not any(is_alive(pid) for pid in before.values())


def test_a_killed_agent_takes_its_trainer_along_and_rejoins(world: Rig) -> None:
    """As when a container dies: nothing of it survives, and its restart completes the world."""
    before = trainers(world)
    world.agents[0, 1].kill()
    world.agents[0, 1].wait()
    wait_until(lambda: not is_alive(before[0, 1]), "the trainer is gone")
    world.start_agent(0, 1, command(world))
    world.wait_event(EventKind.PROGRESS, generation=2)
    (loss,) = world.events(EventKind.LOSS)
    assert (loss["data"]["cause"], loss["data"]["slice"], loss["data"]["host"]) == ("node", 0, 1)


def test_a_killed_coordinator_does_not_disturb_training(world: Rig) -> None:
    """The next one adopts the running generation, and the same processes train on."""
    before = trainers(world)
    world.kill_coordinator()
    world.start_coordinator()
    world.wait_event(EventKind.GENERATION_STARTED, adopted=True, generation=1)
    world.wait_event(EventKind.COMMITTED, count=len(world.events(EventKind.COMMITTED)) + 3)
    assert trainers(world) == before
    assert not world.events(EventKind.LOSS)
    os.kill(before[0, 0], signal.SIGKILL)
    world.wait_event(EventKind.PROGRESS, generation=2)


def test_sigterm_is_told_and_never_looks_like_success(world: Rig) -> None:
    """A pod that is deleted says so, exits 143, and its successor rejoins."""
    world.agents[1, 1].kill(signal.SIGTERM)
    assert world.agents[1, 1].wait() == 143
    world.wait_event(EventKind.DRAINING, slice=1, host=1, graceMs=GRACE_S * 1000)
    world.wait_event(EventKind.LOSS, cause="preemption", slice=1, host=1)
    world.wait_event(EventKind.MEMBER_LEFT, slice=1, host=1)
    world.start_agent(1, 1, command(world), env={protocol.Env.POD_NAME: "another-pod"})
    world.wait_event(EventKind.PROGRESS, generation=2)


def test_a_frozen_agent_is_a_lost_node_and_comes_back(world: Rig) -> None:
    """A member that says nothing is given up, and when it wakes its old trainer is stopped."""
    before = world.trainer_pid(1, 1)
    world.agents[1, 1].kill(signal.SIGSTOP)
    world.wait_event(EventKind.GENERATION_STOPPED, generation=1)
    (loss,) = world.events(EventKind.LOSS)
    assert (loss["data"]["cause"], loss["data"]["slice"], loss["data"]["host"]) == ("node", 1, 1)
    assert is_alive(before)
    world.agents[1, 1].kill(signal.SIGCONT)
    world.wait_event(EventKind.PROGRESS, generation=2)
    assert not is_alive(before)


def test_the_timeline_is_read_from_a_cursor(quiet: Rig) -> None:
    """Events come once, in order, as they happen; another epoch starts from the first one."""
    first = quiet.get(protocol.TIMELINE_PATH)
    # The world may have trained for so long that its first events are forgotten.
    seqs = [event["seq"] for event in first["events"]]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
    cursor = f"epoch={first['epoch']}&after={seqs[-1]}"
    more = quiet.get(f"{protocol.TIMELINE_PATH}?{cursor}&wait_s=30")
    assert more["events"][0]["seq"] == seqs[-1] + 1
    assert more["events"][0]["atMs"] >= first["events"][-1]["atMs"]
    assert more["nowMs"] >= more["events"][-1]["atMs"]
    other = quiet.get(f"{protocol.TIMELINE_PATH}?epoch=other&after=1000000")
    assert seqs[0] <= other["events"][0]["seq"] <= more["events"][0]["seq"]


def test_state_losses_metrics_and_health(quiet: Rig) -> None:
    """People, the operator and Prometheus each get what they ask for."""
    state = quiet.get(protocol.STATE_PATH)
    assert (state["stage"], state["generation"], len(state["members"])) == ("running", 1, 4)
    losses = quiet.get(f"{protocol.LOSSES_PATH}?after=3")["losses"]
    assert losses[:2] == [[4, 0.25], [5, 0.2]]
    metrics = quiet.get(protocol.METRICS_PATH, token="")
    assert 'tpujob_coordinator_generation{job="j",namespace="test"} 1.0' in metrics
    assert quiet.get(protocol.HEALTH_PATH, token="") == "ok\n"


@pytest.mark.parametrize(
    ("path", "token", "code"),
    [
        (protocol.TIMELINE_PATH, "", 401),
        (protocol.STATE_PATH, "wrong", 401),
        (f"{protocol.TIMELINE_PATH}?after=now", None, 400),
        ("/v1/nothing", None, 404),
    ],
)
def test_bad_requests_are_refused(quiet: Rig, path: str, token: str | None, code: int) -> None:
    """Without the token nothing is told, and nonsense gets an answer that says so."""
    options: dict[str, Any] = {} if token is None else {"token": token}
    with pytest.raises(urllib.error.HTTPError) as raised:
        quiet.get(path, **options)
    assert raised.value.code == code
    raised.value.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b'{"type":"leaving","sent_at_ms":1,"grace_ms":1}\n',
        b"x" * (2 << 20),
        b"\n",
    ],
)
def test_strangers_at_the_agents_port_are_sent_away(quiet: Rig, sent: bytes) -> None:
    """Whoever does not answer the challenge is disconnected, and nobody else notices."""
    address = ("127.0.0.1", quiet.config.agent_port)
    with (
        socket.create_connection(address, timeout=60) as stranger,
        contextlib.suppress(ConnectionError),
    ):
        stranger.sendall(sent)
        heard = b"".join(iter(lambda: stranger.recv(4096), b"")).splitlines()
        # No order, and nothing of the job: what to prove, and why it was not.
        assert [json.loads(line)["type"] for line in heard] == ["challenge", "refused"]
    assert not quiet.events(EventKind.LOSS)
    assert quiet.get(protocol.STATE_PATH)["stage"] == "running"
