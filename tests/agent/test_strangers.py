"""Strangers at the doors of coordinator and agent: floods, forgeries, replays; real sockets."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.rig import TOKEN, Rig, rig, signature
from tests.agent.test_notices import put
from tests.waiting import wait_until
from tpujob_agent import wire
from tpujob_agent.handshake import AgentSide, Seal
from tpujob_agent.protocol import (
    HEALTH_PATH,
    LOSSES_PATH,
    METRICS_PATH,
    STATE_PATH,
    TELL_PATH,
    Challenge,
    Env,
    EventKind,
    Hello,
    Message,
    ProcessState,
    Refused,
    Report,
    Run,
    Stop,
    Welcome,
)

STEPS = """
import time, tpujob
tpujob.restored(0)
for step in range(1, 1_000_000):
    time.sleep(0.02)
    tpujob.step(step, loss=1 / step)
"""
MEBIBYTE = 1 << 20
#: What container runtimes leave to root by default.
CONTAINER_CAPABILITIES = (
    "-all,+audit_write,+chown,+dac_override,+fowner,+fsetid,+kill,+mknod,+net_bind_service"
    ",+net_raw,+setfcap,+setgid,+setpcap,+setuid,+sys_chroot"
)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Rig]:
    """A job of one host."""
    with rig(tmp_path, slices=1, hosts=1) as made:
        yield made


def train(job: Rig) -> None:
    """Start everything, and wait for the first steps."""
    job.start([sys.executable, "-c", STEPS])
    job.wait_event(EventKind.PROGRESS, count=2)


def memory_mb(job: Rig) -> float:
    """The most memory that the coordinator has had."""
    assert job.coordinator is not None
    status = Path(f"/proc/{job.coordinator.popen.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def steps(job: Rig) -> int:
    """What the job has reached."""
    return int(job.events(EventKind.PROGRESS)[-1]["data"]["lastStep"])


class Client:
    """An agent's side of a connection, by hand."""

    def __init__(self, job: Rig, token: str = TOKEN, **changes: Any) -> None:
        self.socket = socket.create_connection(("127.0.0.1", job.config.agent_port), timeout=60)
        self.lines = self.socket.makefile("rb")
        self.hello = {
            "slice": 0,
            "host": 0,
            "pod": "p",
            "node": "n",
            "ip": "127.0.0.1",
            "incarnation": "i",
            "sent_at_ms": 1,
            **changes,
        }
        self.side = AgentSide(token, self._introduce)

    def _introduce(self, nonce: str, version: int) -> Hello:
        return Hello(**{"protocol": version, "nonce": nonce, **self.hello})

    def greet(self) -> Message | None:
        """Answer the challenge; the coordinator's answer, or None: it has hung up."""
        challenge = self.side.read(self.lines.readline().rstrip(b"\n"))
        assert isinstance(challenge, Challenge)
        self.socket.sendall(self.side.answer(challenge))
        return self.read()

    def read(self) -> Message | None:
        """The next message; None at the end."""
        with contextlib.suppress(ConnectionError):
            if line := self.lines.readline():
                return self.side.read(line.rstrip(b"\n"))
        return None

    def close(self) -> None:
        """Hang up."""
        self.lines.close()
        self.socket.close()


@contextlib.contextmanager
def client(job: Rig, token: str = TOKEN, **changes: Any) -> Iterator[Client]:
    """A client that hangs up."""
    made = Client(job, token, **changes)
    try:
        yield made
    finally:
        made.close()


def flood(port: int, payload: bytes, count: int) -> None:
    """So many connections at once, each with this and no newline."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            with contextlib.suppress(OSError):
                one = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
                one.setblocking(False)
                one.send(payload)


@pytest.mark.parametrize("door", ["agents", "http"])
@pytest.mark.parametrize("size", [4_000, MEBIBYTE], ids=["small", "a megabyte"])
def test_a_thousand_strangers_cost_little_and_training_goes_on(
    job: Rig, door: str, size: int
) -> None:
    """None of them proves itself: what they send is hardly kept, and the oldest have to go."""
    train(job)
    before = memory_mb(job)
    port = job.config.agent_port if door == "agents" else job.config.http_port
    flood(port, b"x" * size, 1_000)
    reached = steps(job)
    wait_until(lambda: steps(job) > reached + 10, "training goes on")
    assert job.get(HEALTH_PATH) == "ok\n"
    assert job.get(STATE_PATH)["members"][0]["connected"]
    assert memory_mb(job) - before < 40
    assert not job.events(EventKind.LOSS)
    assert job.coordinator is not None
    assert job.coordinator.text.count("connection from") < 50


def test_strangers_that_keep_still_lose_their_seats_to_agents(tmp_path: Path) -> None:
    """Whoever holds connections open does not keep a new agent out."""
    with rig(tmp_path, slices=1, hosts=1) as job, contextlib.ExitStack() as stack:
        job.start_coordinator()
        wait_until(lambda: _is_up(job), "the coordinator")
        for _ in range(300):
            address = ("127.0.0.1", job.config.agent_port)
            stack.enter_context(socket.create_connection(address, timeout=30))
        job.start_agent(0, 0, [sys.executable, "-c", STEPS])
        job.wait_event(EventKind.PROGRESS)


def _is_up(job: Rig) -> bool:
    with contextlib.suppress(OSError):
        return bool(job.get(HEALTH_PATH) == "ok\n")
    return False


def test_a_stranger_is_refused_and_its_agent_is_told(job: Rig) -> None:
    """Another job's token opens nothing, whatever the place."""
    train(job)
    with client(job, token="another") as stranger:
        refused = stranger.greet()
        assert isinstance(refused, Refused)
        assert "wrong token" in refused.reason
        assert stranger.read() is None
    assert len(job.events(EventKind.MEMBER_JOINED)) == 1


def test_what_was_said_cannot_be_said_again(job: Rig) -> None:
    """Not on another connection, not twice, not changed, not without its code."""
    job.start_coordinator()
    wait_until(lambda: _is_up(job), "the coordinator")
    report = Report(1, ProcessState.IDLE, 0)
    with client(job) as first:
        assert isinstance(first.greet(), Welcome)
        line = first.side.signed(report)
        first.socket.sendall(line + line)
        assert first.read() is None, "the second one is a replay"
    for forged in (line, wire.encode(report), None):
        with client(job) as second:
            assert isinstance(second.greet(), Welcome)
            second.socket.sendall(forged or _changed(second.side.signed(report)))
            assert second.read() is None
    assert job.coordinator is not None
    assert "does not prove" in job.coordinator.text


def _changed(line: bytes) -> bytes:
    return line.replace(b'"generation":0', b'"generation":9')


def test_nobody_says_hello_by_what_he_has_overheard(job: Rig) -> None:
    """The token is never on the wire, and a recorded stream opens nothing later."""
    job.start_coordinator()
    wait_until(lambda: _is_up(job), "the coordinator")
    with client(job) as overheard:
        challenge = overheard.lines.readline().rstrip(b"\n")
        hello = overheard.side.answer(overheard.side.read(challenge))  # type: ignore[arg-type] # a challenge
        overheard.socket.sendall(hello)
        assert isinstance(overheard.read(), Welcome)
    assert TOKEN.encode() not in challenge + hello
    with client(job) as replayer:
        replayer.lines.readline()
        replayer.socket.sendall(hello)
        assert b"wrong token" in replayer.lines.readline()
    assert len(job.events(EventKind.MEMBER_JOINED)) == 1


@pytest.mark.parametrize(
    "line",
    [
        lambda _: wire.encode(Run(1, 0, 1, 0, 1, "127.0.0.1:9")),
        lambda _: b"0" * 32 + b" " + wire.encode(Run(1, 0, 1, 0, 1, "127.0.0.1:9")),
        lambda nonces: Seal("guess", "coordinator", *nonces).signed(wire.encode(Welcome())),
        lambda nonces: Seal("guess", "agent", *nonces).signed(wire.encode(Stop(1, "x"))),
        lambda _: wire.encode(Challenge("again")),
        lambda _: b"x" * MEBIBYTE,
    ],
    ids=["unsigned", "zeros", "a guess", "the wrong direction", "another challenge", "endless"],
)
def test_an_agent_obeys_no_coordinator_that_does_not_prove_itself(
    job: Rig, line: Callable[[tuple[str, str]], bytes]
) -> None:
    """Who answers for the coordinator's address can start, stop and end nothing."""
    with socket.create_server(("127.0.0.1", job.config.agent_port)) as server:
        server.settimeout(60)
        job.start_agent(0, 0, [sys.executable, "-c", "open('started', 'w')"])
        for _ in range(2):  # it hangs up, and asks again
            impostor, _ = server.accept()
            with impostor, impostor.makefile("rb") as lines:
                impostor.settimeout(60)
                impostor.sendall(wire.encode(Challenge("ab")))
                hello = wire.decode(lines.readline().partition(b" ")[2])
                assert isinstance(hello, Hello)
                with contextlib.suppress(ConnectionError):
                    impostor.sendall(line(("ab", hello.nonce)))
                    assert lines.read() == b"", "it says nothing more"
    assert not (job.folder / "started").exists()
    assert job.agents[0, 0].popen.poll() is None


def test_an_agent_alone_with_an_impostor_is_alone(tmp_path: Path) -> None:
    """Its fence counts from the last coordinator that has proved itself."""
    with rig(tmp_path, slices=1, hosts=1, spares=1, fence_s=3) as job:
        job.start_coordinator()
        job.start_agent(0, 0, [sys.executable, "-c", STEPS])
        job.wait_event(EventKind.PROGRESS, count=2)
        job.kill_coordinator()
        with _impostor(job.config.agent_port):
            wait_until(lambda: "stopping, as others may" in job.agents[0, 0].text, "the fence")


@contextlib.contextmanager
def _impostor(port: int) -> Iterator[None]:
    """Takes connections, challenges, and keeps them."""
    server = socket.create_server(("127.0.0.1", port))
    kept: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                kept.append(server.accept()[0])
                kept[-1].sendall(wire.encode(Challenge("ab")))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()
        for one in kept:
            one.close()


def status(job: Rig, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """Status and text of a GET."""
    url = f"http://127.0.0.1:{job.config.http_port}{path}"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=60
        ) as got:
            return got.status, ""
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_request_is_answered_once_and_as_it_was_signed(job: Rig) -> None:
    """Not again, not for another path or query, not days later, not with another body."""
    job.start_coordinator()
    wait_until(lambda: _is_up(job), "the coordinator")
    asked = f"{LOSSES_PATH}?after=3"
    headers = signature(TOKEN, "GET", asked)
    assert TOKEN not in str(headers)
    assert status(job, f"{LOSSES_PATH}?after=0", headers)[0] == 401
    assert status(job, STATE_PATH, headers)[0] == 401
    assert status(job, asked, headers)[0] == 200
    assert status(job, asked, headers) == (401, "this signature has been used before\n")
    assert status(job, asked, {})[0] == status(job, asked, {"Tpujob-Signature": "..."})[0] == 401
    assert status(job, asked, signature("wrong", "GET", asked))[0] == 401
    assert status(job, METRICS_PATH, {})[0] == 200
    assert put(job, {"notices": [], "budgets": {}}, token="wrong") == 401


def test_a_body_is_the_one_that_was_signed(job: Rig) -> None:
    """Its order and spaces may change on the way, its content may not."""
    job.start_coordinator()
    wait_until(lambda: _is_up(job), "the coordinator")
    signed = {"notices": [], "budgets": {"process": 3}}
    url = f"http://127.0.0.1:{job.config.http_port}{TELL_PATH}"
    found = []
    for text in ('{ "budgets": {"process": 3}, "notices": [] }', '{"notices": [], "budgets": {}}'):
        headers = signature(TOKEN, "PUT", TELL_PATH, signed)
        request = urllib.request.Request(url, text.encode(), headers, method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                found.append(answer.status)
        except urllib.error.HTTPError as error:
            found.append(error.code)
    assert found == [200, 401]


_PEEK = """
import os, pathlib, sys
agent = int(os.environ["AGENT"])
for name in ("environ", "mem", "maps"):
    try:
        (pathlib.Path("/proc") / str(agent) / name).open("rb").read(1)
    except PermissionError:
        continue
    sys.exit(f"the agent's {name} can be read")
"""


def test_a_program_cannot_read_its_agents_environment_or_memory(job: Rig) -> None:
    """The token is not the program's, though both run as one user, as in a container."""
    python = job.folder / "python"
    inside = f"exec setpriv --bounding-set={CONTAINER_CAPABILITIES} {shlex.quote(sys.executable)}"
    python.write_text(f'#!/bin/sh\nAGENT=$$ {inside} "$@"\n')
    python.chmod(0o755)
    job.start([sys.executable, "-c", _PEEK], python=str(python))
    job.wait_event(EventKind.FINISHED)
    assert not job.events(EventKind.LOSS)


def test_the_environment_names_nothing_secret(job: Rig) -> None:
    """Neither the fork server nor the program has the token."""
    job.start([sys.executable, "-c", STEPS])
    pid = job.trainer_pid(0, 0)
    for process in (pid, int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])):
        found = Path(f"/proc/{process}/environ").read_bytes()
        assert Env.TOKEN.encode() not in found
        assert TOKEN.encode() not in found
    assert os.getpid() != pid
