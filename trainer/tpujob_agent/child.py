"""The trainer process: what happens between the fork and the user's first line."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import runpy
import signal
import sys
import types
from pathlib import Path
from typing import Any

from tpujob_agent import processes, runs, stacks
from tpujob_agent.command import Kind, Program
from tpujob_agent.peers import is_peer_lost
from tpujob_agent.protocol import Env, ExitCode

#: How long a trainer waits for its leader's port before it lets the program try by itself.
LEADER_WAIT_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """One trainer to be started."""

    generation: int
    program: Program
    env: dict[str, str | None]  # None: unset
    wait_for: str = ""  # ip:port of the leader; empty: do not wait

    def to_json(self) -> dict[str, Any]:
        """The request as it travels to the fork server."""
        return dataclasses.asdict(self) | {"program": self.program.to_json()}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Start:
        """Inverse of ``to_json``."""
        return cls(
            generation=raw["generation"],
            program=Program.from_json(raw["program"]),
            env=dict(raw["env"]),
            wait_for=raw["wait_for"],
        )


def set_up(start: Start, output: int, parent: int) -> None:
    """Make the forked process look like one that was started by itself."""
    os.setsid()
    processes.die_with_parent(parent)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(output)
    for name, value in start.env.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    record = start.env.get(Env.STACKS)
    if record and start.program.kind is not Kind.EXEC:  # exec drops handlers
        stacks.listen(record)
    for stream in (sys.stdout, sys.stderr):
        # The last lines before a SIGKILL are the ones that matter.
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr] # a TextIOWrapper
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # a fork would repeat its siblings' numbers; `random` reseeds itself


def run(start: Start) -> None:
    """Run the program; returns when it has succeeded, and leaves hard when not.

    A failed program must not unwind through exit hooks: JAX's would wait for dead
    peers for 60 to 93 s.
    """
    try:
        if start.wait_for:
            _wait_before_dialling(start.wait_for)
        _run(start.program)
    except SystemExit as stop:
        if code := _exit_code(stop):
            _leave(code)
    except BaseException as error:  # noqa: BLE001 - whatever ended the program is reported
        error.__traceback__ = _of_program(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            _leave(128 + signal.SIGINT)
        is_alone = start.env.get(Env.JAX_NUM_PROCESSES) == "1"
        _leave(1 if is_alone or not is_peer_lost(error) else ExitCode.PEER_LOST)


def _of_program(trace: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without the frames of this module and of runpy, as plain Python would show."""
    top = trace
    while top is not None:
        name = top.tb_frame.f_code.co_filename
        if name != __file__ and not name.endswith(("runpy.py", "<frozen runpy>")):
            return top
        top = top.tb_next
    return trace


def _run(program: Program) -> None:
    if program.kind is Kind.EXEC:
        _execute(program.argv)
    sys.argv = [program.target, *program.args]
    if program.kind is Kind.MODULE:
        runpy.run_module(program.target, run_name="__main__", alter_sys=True)
    elif program.kind is Kind.SCRIPT:
        runpy.run_path(program.target, run_name="__main__")
    else:
        sys.argv[0] = "-c"
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(program.target, "<string>", "exec"), main.__dict__)  # noqa: S102 - python -c


def _execute(argv: tuple[str, ...]) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, other programs should not
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - no shell is wanted
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError)
        reason = "it does not exist in this image" if is_missing else error.strerror
        print(f"tpujob: cannot run {argv[0]!r}: {reason}", file=sys.stderr)
        _leave(127 if is_missing else 126)


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return (stop.code or 0) & 0xFF
    print(stop.code, file=sys.stderr)
    return 1


def _leave(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _wait_before_dialling(address: str) -> None:
    """Have ``jax.distributed.initialize`` wait for the leader; other programs wait for nobody."""
    distributed = getattr(sys.modules.get("jax"), "distributed", None)
    if distributed is None:
        return
    dial = distributed.initialize

    @functools.wraps(dial)
    def initialize(*args: Any, **options: Any) -> None:
        if not runs.await_leader(address, LEADER_WAIT_S):
            print(f"tpujob: the leader's port {address} is not open yet, going on without waiting")
        dial(*args, **options)

    distributed.initialize = initialize


def path_entry(program: Program) -> str | None:
    """What Python would put first on ``sys.path`` for this program; None: nothing."""
    if program.kind is Kind.EXEC or getattr(sys.flags, "safe_path", False):
        return None
    if program.kind is Kind.SCRIPT:
        return str(Path(program.target).resolve().parent)
    return str(Path.cwd()) if program.kind is Kind.MODULE else ""
