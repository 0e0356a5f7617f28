"""The fork server: imports once, forks one trainer per generation, reports their ends.

It runs the user's interpreter as a child of the agent. It stays single-threaded
and never opens a device, so that a fork of it is as good as a fresh process.
Requests and answers are JSON packets on a Unix socket.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpujob_agent import child, processes
from tpujob_agent.command import Program

#: Larger than any request: environment and command line of one trainer.
PACKET_BYTES = 1 << 20
#: Libraries start their thread pools when imported; a fork would lose those threads.
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Zygote:
    """Serves the agent until it goes away; in a forked trainer, ``serve`` returns its start."""

    def __init__(self, agent: socket.socket) -> None:
        self._agent = agent
        self._generation = 0
        self._pid = 0  # of the running trainer
        self._killed = False
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)

    def listen_to_signals(self) -> None:
        """Wake up at the end of a child; leave the rest to the agent."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def serve(self) -> child.Start | None:
        """Loop; returns a start in the forked child, None when the agent has gone."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._agent, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._agent:
                        packet, descriptors = _receive(self._agent)
                        if not packet:
                            return None
                        start = self._obey(packet, descriptors)
                        if start:
                            return start
                    else:
                        _drain(self._wake_read)
                self._reap()

    def _obey(self, packet: bytes, descriptors: Sequence[int]) -> child.Start | None:
        request = json.loads(packet)
        if request["op"] == "kill":
            self._kill()
            return None
        if request["op"] == "terminate":
            self._terminate()
            return None
        return self._fork(child.Start.from_json(request["start"]), descriptors[0])

    def _fork(self, start: child.Start, output: int) -> child.Start | None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._agent.close()
            os.close(self._wake_read)
            child.set_up(start, output, parent)  # before the other end of the signal pipe closes
            os.close(self._wake_write)
            return start
        os.close(output)
        self._generation, self._pid, self._killed = start.generation, pid, False
        self._tell("started", pid=pid)
        return None

    def _kill(self) -> None:
        self._reap()  # a trainer that ended by itself must not be taken for a killed one
        if self._pid:
            self._killed = True
            processes.kill_group(self._pid, os.getppid())

    def _terminate(self) -> None:
        self._reap()
        if self._pid:
            os.kill(self._pid, signal.SIGTERM)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                pid = ended.si_pid
                if pid == self._pid:
                    # Its helpers go with it; the dead leader still holds the group's number.
                    processes.kill_group(pid, os.getppid())
                status = os.waitpid(pid, 0)[1]
                if pid == self._pid:
                    self._tell("exited", pid=pid, status=status, killed=self._killed)
                    self._pid = 0

    def _tell(self, event: str, **details: Any) -> None:
        tell(self._agent, event, generation=self._generation, **details)


def tell(agent: socket.socket, event: str, **details: Any) -> None:
    """Send one answer to the agent."""
    details |= {"event": event, "at_ms": time.time_ns() // 1_000_000}
    with contextlib.suppress(BrokenPipeError):  # the agent has gone, and soon so have we
        agent.send(json.dumps(details).encode())


def _receive(agent: socket.socket) -> tuple[bytes, list[int]]:
    packet, descriptors, _, _ = socket.recv_fds(agent, PACKET_BYTES, 1)
    return packet, descriptors


def _drain(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass


def preload(modules: Sequence[str]) -> dict[str, str]:
    """Import modules single-threaded; returns what failed, with the reason."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    failed = {}
    for name in modules:
        if problem := _import(name):
            failed[name] = problem
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return failed


def _import(name: str) -> str:
    """Import a module, or an attribute that looks like one (orbax.checkpoint.v1); the problem."""
    try:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            parent, _, attribute = name.rpartition(".")
            if not parent or not hasattr(importlib.import_module(parent), attribute):
                raise
    except BaseException as error:  # noqa: BLE001 - a bad module must not stop the fork server
        return f"{type(error).__name__}: {error}"
    return ""


def _threads() -> int:
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return 1


def main(descriptor: int, parent: int) -> None:
    """Preload, serve, and become the trainer in every fork."""
    processes.die_with_parent(parent)
    agent = socket.socket(fileno=descriptor)
    zygote = Zygote(agent)
    zygote.listen_to_signals()
    packet, _ = _receive(agent)
    if not packet:
        return
    request = json.loads(packet)
    entry = child.path_entry(Program.from_json(request["program"]))
    sys.path[:] = [place for place in sys.path if place]
    sys.path[0:0] = [] if entry is None else [entry]
    started = time.monotonic()
    gc.disable()  # what is imported stays: to look for garbage among it is a tenth of the time
    failed = preload(request["preload"])
    gc.enable()
    gc.collect()
    gc.freeze()  # or the first collection in each trainer would copy every page
    seconds = round(time.monotonic() - started, 2)
    tell(agent, "ready", pid=os.getpid(), seconds=seconds, failed=failed, threads=_threads())
    if start := zygote.serve():
        gc.unfreeze()
        child.run(start)
