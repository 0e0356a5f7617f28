"""Holds the processes of one cluster: nothing outlives it.

A program of its own (`python -m localcluster.supervisor SOCKET PIDFILE OWNER_FD`), standard
library only. With nodes it is PID 1 of the cluster's PID namespace, so that its death ends
everything in there; otherwise every child asks the kernel to be killed with it.
It takes one JSON request per connection on a Unix socket:

    {"op": "start", "name": ..., "argv": [...], "env": {...}, "log": ..., "restart": bool}
    {"op": "stop", "name": ...}
    {"op": "list"}
"""

import ctypes
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_FIRST_DELAY_S = 0.2
_LAST_DELAY_S = 5.0
# A process that lived this long was healthy: its next restart is immediate again.
_HEALTHY_S = 10.0
_CLIENT_TIMEOUT_S = 2.0
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass
class Child:
    """A process to be kept running."""

    name: str
    argv: list[str]
    env: dict[str, str]
    log: str
    restart: bool
    pid: int = 0
    started: float = 0.0
    restarts: int = 0
    delay_s: float = 0.0
    due: float | None = 0.0
    """When to start it (monotonic seconds); None while it runs or stays down."""
    exit_code: int | None = None

    def start(self) -> None:
        """Start the process, its output appended to its log."""
        self.started, self.due, self.exit_code = time.monotonic(), None, None
        self.pid = os.fork()
        if self.pid == 0:
            self._become()

    def _become(self) -> None:
        try:
            # The parent's handlers and blocked signals must not be inherited.
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((nothing, 0), (log, 1), (log, 2)):
                os.dup2(source, target)
            os.execve(self.argv[0], self.argv, self.env)  # noqa: S606 (no shell is meant)
        except OSError as error:
            os.write(2, f"cannot start {self.argv[0]}: {error}\n".encode())
        finally:
            os._exit(127)

    def ended(self, code: int) -> None:
        """Note the end of the process and when to start it again."""
        self.pid, self.exit_code = 0, code
        if not self.restart:
            return
        lived_s = time.monotonic() - self.started
        self.delay_s = (
            _FIRST_DELAY_S if lived_s > _HEALTHY_S else min(_LAST_DELAY_S, self.delay_s * 2)
        )
        self.delay_s = max(self.delay_s, _FIRST_DELAY_S)
        self.due = time.monotonic() + self.delay_s
        self.restarts += 1


class Supervisor:
    """The event loop: requests, ends of children, the end of the owner."""

    def __init__(
        self,
        listener: socket.socket | None,
        owner_fd: int | None,
        children: Iterable[Child] = (),
    ) -> None:
        """Serve requests on `listener` until SIGTERM, or the process of `owner_fd` ends."""
        self._children = {child.name: child for child in children}
        self._is_over = False
        self._selector = selectors.DefaultSelector()
        if listener is not None:
            self._selector.register(listener, selectors.EVENT_READ, lambda: self._serve(listener))
        reader, writer = os.pipe()
        for end in (reader, writer):
            os.set_blocking(end, False)
        self._wakeups = reader
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._selector.register(reader, selectors.EVENT_READ, self._drain_wakeups)
        if owner_fd is not None:
            self._selector.register(owner_fd, selectors.EVENT_READ, self._end)

    def run(self) -> None:
        """Serve, then kill all children and wait for them."""
        while not self._is_over:
            for key, _ in self._selector.select(self._next_due_s()):
                handler: Callable[[], None] = key.data
                handler()
            self._reap()
            self._start_due()
        self._kill_all()

    def _end(self) -> None:
        self._is_over = True

    def _drain_wakeups(self) -> None:
        os.read(self._wakeups, 4096)

    def _next_due_s(self) -> float | None:
        dues = [child.due for child in self._children.values() if child.due is not None]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _start_due(self) -> None:
        for child in self._children.values():
            if child.due is not None and child.due <= time.monotonic():
                child.start()

    def _reap(self) -> None:
        # All children, orphans of others included: as PID 1 we inherit them.
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self._children.values():
                if child.pid == pid:
                    child.ended(os.waitstatus_to_exitcode(status))

    def _kill_all(self) -> None:
        running = [child.pid for child in self._children.values() if child.pid]
        for pid in running:
            os.kill(pid, signal.SIGKILL)
        for pid in running:
            os.waitpid(pid, 0)

    def _serve(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(_CLIENT_TIMEOUT_S)
            try:
                with connection.makefile("r") as lines:
                    request = json.loads(lines.readline())
                connection.sendall(json.dumps(self._answer(request)).encode() + b"\n")
            except (OSError, ValueError, KeyError) as error:
                sys.stderr.write(f"bad request: {error!r}\n")

    def _answer(self, request: dict[str, Any]) -> Any:
        if request["op"] == "start":
            self._replace(Child(**{key: request[key] for key in request if key != "op"}))
        elif request["op"] == "stop":
            self._stop(request["name"])
        return [
            {
                "name": child.name,
                "running": child.pid != 0,
                "restarts": child.restarts,
                "exit_code": child.exit_code,
            }
            for child in self._children.values()
        ]

    def _replace(self, child: Child) -> None:
        self._stop(child.name)
        self._children[child.name] = child
        child.start()

    def _stop(self, name: str) -> None:
        child = self._children.pop(name, None)
        if child is not None and child.pid:
            os.kill(child.pid, signal.SIGKILL)


def main() -> None:
    """Run the supervisor with the arguments of the command line."""
    socket_path, pid_path, owner_fd = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    listener = socket.socket(socket.AF_UNIX)
    # A path may be longer than a socket's address (108 bytes): go by its folder.
    os.chdir(socket_path.parent)
    socket_path.unlink(missing_ok=True)
    listener.bind(socket_path.name)
    listener.listen(16)
    # /proc is the host's, so this is the PID by which the host knows us.
    host_pid = str(Path("/proc/self").readlink())
    temporary = pid_path.with_suffix(".tmp")
    temporary.write_text(host_pid, encoding="utf-8")
    temporary.rename(pid_path)
    Supervisor(listener, owner_fd if owner_fd >= 0 else None).run()


if __name__ == "__main__":
    main()
