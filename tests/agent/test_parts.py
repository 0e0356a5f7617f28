"""Parts of the agent that need no coordinator."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.interpreters import INTERPRETERS, TOO_OLD
from tests.waiting import wait_until
from tpujob_agent.build import archive, build
from tpujob_agent.command import Kind, parse
from tpujob_agent.output import TAIL_BYTES, Output
from tpujob_agent.peers import is_peer_lost
from tpujob_agent.processes import state_of
from tpujob_agent.protocol import Env
from tpujob_agent.settings import Settings, StartError

ENV = {
    Env.COORDINATOR: "j-coordinator.ns:7077",
    Env.TOKEN: "t",
    Env.SLICE: "1",
    Env.HOST: "0",
    Env.POD_IP: "10.0.0.1",
}


@pytest.mark.parametrize(
    ("command", "kind", "options", "target", "args"),
    [
        ("python3 train.py --steps 3", Kind.SCRIPT, "", "train.py", "--steps 3"),
        ("python3 -m pkg.train -x", Kind.MODULE, "", "pkg.train", "-x"),
        ("python3 -mpkg", Kind.MODULE, "", "pkg", ""),
        ("python3 -uB -m pkg", Kind.MODULE, "-u -B", "pkg", ""),
        ("python3 -um pkg a", Kind.MODULE, "-u", "pkg", "a"),
        ("python3 -c pass a", Kind.CODE, "", "pass", "a"),
        ("python3 -X dev -Werror -OO t.py", Kind.SCRIPT, "-Xdev -Werror -O -O", "t.py", ""),
    ],
)
def test_python_commands_are_taken_apart(
    command: str, kind: Kind, options: str, target: str, args: str
) -> None:
    """What CPython would run, with which options, is what the fork server runs."""
    program = parse(command.split())
    assert program.kind is kind
    assert program.options == tuple(options.split())
    assert (program.target, program.args) == (target, tuple(args.split()))
    assert program.argv == tuple(command.split())


@pytest.mark.parametrize(
    "command",
    [
        "sh -c x",
        "python3",
        "python3 -i t.py",
        "python3 -V",
        "python3 -",
        "python3 --version",
        "python3 -m",
        "env python3 t.py",
        "python3 -x t.py",
        "python3 -W",
        "no-such-program -v",
    ],
)
def test_other_commands_are_left_as_they_are(command: str) -> None:
    """What cannot be forked is exec'd, word by word."""
    program = parse(command.split())
    assert program.kind is Kind.EXEC
    assert program.argv == tuple(command.split())


def test_no_command_is_refused() -> None:
    """A missing command is told before anything starts."""
    with pytest.raises(StartError, match="command"):
        parse([])


def test_settings_come_from_the_environment() -> None:
    """The minimum is enough, and the rest has defaults."""
    settings = Settings.from_env(ENV)
    assert (settings.host, settings.port) == ("j-coordinator.ns", 7077)
    assert (settings.slice, settings.host_index, settings.attempt) == (1, 0, 0)
    assert settings.preload == ()
    assert Settings.from_env({**ENV, Env.PRELOAD: "jax, optax"}).preload == ("jax", "optax")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (Env.COORDINATOR, ""),
        (Env.COORDINATOR, "nowhere"),
        (Env.TOKEN, ""),
        (Env.SLICE, "one"),
        (Env.HOST, "-1"),
        (Env.POD_IP, ""),
        (Env.GRACE_S, "soon"),
        (Env.PROGRESS_PATTERN, "step=("),
        (Env.PROGRESS_PATTERN, "step=([0-9]+)"),
    ],
)
def test_wrong_settings_are_named(name: str, value: str) -> None:
    """Each wrong variable gives one sentence that names it."""
    with pytest.raises(StartError, match=name):
        Settings.from_env({**ENV, name: value})


class JaxRuntimeError(RuntimeError):
    """Named as JAX's own."""


@pytest.mark.parametrize(
    "error",
    [
        # collected from JAX 0.10 with a rank killed
        ValueError(
            "UNKNOWN: Gloo all-reduce failed: [external/gloo/gloo/transport/tcp/pair.cc:547] "
            "Connection closed by peer [127.0.0.1]:50580"
        ),
        ValueError(
            "UNKNOWN: Gloo all-reduce failed: [external/gloo/gloo/transport/tcp/pair.cc:538] "
            "Read error [127.0.0.1]:22242: Connection reset by peer"
        ),
        JaxRuntimeError(
            "UNAVAILABLE: Failed to send RPC to coordination service. Either the leader task "
            "was preempted/died/restarted unexpectedly"
        ),
        JaxRuntimeError("DEADLINE_EXCEEDED: Barrier timed out. Id: x"),
        JaxRuntimeError("DEADLINE_EXCEEDED: GetKeyValue() timed out with key: a"),
        JaxRuntimeError("INTERNAL: Shutdown barrier has failed: another task died"),
        JaxRuntimeError(
            "INTERNAL: /job:jax_worker/replica:0/task:1 has failed: stopped sending heartbeats"
        ),
    ],
)
def test_a_dead_peer_is_recognised(error: BaseException) -> None:
    """Errors that only say that another process has died are no error of the program."""
    assert is_peer_lost(error)
    wrapped = RuntimeError("step 12 failed")
    wrapped.__cause__ = error
    assert is_peer_lost(wrapped)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("UNKNOWN: label 3"),
        ValueError("the peer group must not be empty"),
        ConnectionResetError("Connection reset by peer"),  # its own connections are its business
        JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes"),
        JaxRuntimeError("INVALID_ARGUMENT: shapes do not match"),
        JaxRuntimeError(
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 17.5G of 15.7G. "
            "1. Size: 4.0G Operator: op_name=jit(step)/checkpoint/optimization_barrier"
        ),
        JaxRuntimeError("INTERNAL: Ran out of memory: 4.0G by op_name=jit(f)/optimization_barrier"),
        JaxRuntimeError("INTERNAL: ptxas failed; tasks that failed: 3"),
        KeyError("gloo"),
    ],
)
def test_an_own_error_stays_one(error: BaseException) -> None:
    """The program's own failures must be charged to the user's budget."""
    assert not is_peer_lost(error)


def test_the_archive_is_reproducible(tmp_path: Path) -> None:
    """Equal sources make equal bytes, so that images do not change without reason."""
    assert archive() == archive()
    build(tmp_path / "a.pyz")
    assert (tmp_path / "a.pyz").read_bytes() == archive()
    assert os.access(tmp_path / "a.pyz", os.X_OK)


@pytest.mark.parametrize("python", INTERPRETERS)
@pytest.mark.parametrize(
    ("arguments", "env", "words"),
    [
        ([], ENV, "no command"),
        (["--", "sh"], {}, Env.COORDINATOR),
    ],
)
def test_a_wrong_start_is_one_sentence(
    tmp_path: Path, python: str, arguments: list[str], env: dict[str, str], words: str
) -> None:
    """Exit code 64 and one line, under every Python that images may have."""
    build(tmp_path / "agent.pyz")
    env = {"PATH": os.environ["PATH"], Env.RUN_DIR: str(tmp_path / "run"), **env}
    command = [python, str(tmp_path / "agent.pyz"), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 64
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("python", TOO_OLD)
def test_an_old_python_is_told(tmp_path: Path, python: str) -> None:
    """An image whose python3 is too old gets a sentence, not a traceback."""
    build(tmp_path / "agent.pyz")
    command = [python, str(tmp_path / "agent.pyz"), "--", "true"]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, check=False)
    assert done.returncode == 64
    assert done.stderr.startswith("tpujob-agent: needs Python 3.10 or newer")


def test_state_and_cpu_time_of_a_process() -> None:
    """The time grows while it works, and is not to be had of one that does not exist."""
    _, before = state_of(os.getpid())
    wait_until(lambda: state_of(os.getpid())[1] > before, "a tick of work")
    assert state_of(os.getpid())[0] == "R"
    with subprocess.Popen(["sleep", "1000"]) as other:
        other.send_signal(signal.SIGSTOP)
        wait_until(lambda: state_of(other.pid)[0] == "T", "it is stopped")
        other.kill()
    assert state_of(other.pid) == ("", 0)


def test_a_log_that_nobody_reads_stops_nobody() -> None:
    """Neither the program nor the agent; old lines go, whole, and the log says later how many."""
    log_read, log_write = os.pipe()
    output = Output(log_write)
    os.set_blocking(output.writer, False)
    lines = [b"%08d %s\n" % (number, b"x" * 91) for number in range(50_000)]
    try:
        for line in lines:
            assert os.write(output.writer, line) == len(line), "the program waits for the log"
            output.pump()
        received = b""
        while output.has_backlog or not received.endswith(lines[-1]):
            received += os.read(log_read, 1 << 20)
            output.pump()
    finally:
        output.close()
        os.close(log_read)
        os.close(log_write)
    before, notice, after = received.partition(b"tpujob-agent: ")
    missing, words, after = after.partition(b" lines are missing here: the log took none\n")
    kept = before.count(b"\n") + after.count(b"\n")
    assert notice
    assert words
    assert int(missing) > 10_000
    assert after.endswith(b"".join(lines[-1_000:]))
    # A line that was half written when the rest was dropped ends there.
    assert len(lines) - int(missing) <= kept <= len(lines) - int(missing) + 1
    assert output.tail.endswith(lines[-1].decode())
    assert len(output.tail) == TAIL_BYTES


@pytest.mark.parametrize(
    ("line", "step"),
    [
        (b"step=12", 12),
        (b"x" * 60_000 + b" step=13", 13),  # as progress bars do
        (b"step=14" + b"x" * 60_000, 0),
        (b"step=" + b"9" * 5000, 0),
    ],
    ids=["short", "end of a long line", "beginning of a long line", "no number of a step"],
)
def test_progress_is_read_from_the_end_of_a_line(line: bytes, step: int) -> None:
    """However long the line is; a pattern that takes quadratic time meets 1,024 bytes of it."""
    with Path(os.devnull).open("wb") as log:
        output = Output(log.fileno(), re.compile(b"step=(?P<step>[0-9]+)"))
        os.write(output.writer, line + b"\n")
        output.pump()
        assert output.step == step
        output.close()


def test_this_interpreter_is_among_the_tested() -> None:
    """The list of interpreters is never empty."""
    assert sys.executable in INTERPRETERS
