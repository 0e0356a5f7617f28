"""The processes of a cluster, as seen from outside: start them, ask about them, end them."""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from localcluster.controlplane import Daemon
from localcluster.kubeapi import wait_for
from localcluster.layout import Layout

_PACKAGES = Path(__file__).parent.parent
_START_S = 60.0
_END_S = 60.0
_REQUEST_S = 60.0
TOOL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LOG_TAIL_LINES = 12


class Processes:
    """Requests to the supervisor of one cluster."""

    def __init__(self, layout: Layout) -> None:
        """Speak to the supervisor whose files are in `layout`; it need not run yet."""
        self._layout = layout

    def launch(self, *, namespaces: bool, owner_pid: int | None) -> None:
        """Start the supervisor, in namespaces of its own if asked.

        Args:
            namespaces: Give it a network, a mount and a PID namespace.
            owner_pid: A process whose end ends the cluster too.
        """
        socket_path, pid_path = self._layout.root / "control.sock", self._pid_file
        pid_path.unlink(missing_ok=True)
        unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]
        program = python_program("localcluster.supervisor", str(socket_path), str(pid_path))
        owner_fd = -1 if owner_pid is None else os.pidfd_open(owner_pid)
        try:
            with (self._layout.logs / "supervisor.log").open("ab") as log:
                subprocess.Popen(
                    [*(unshare if namespaces else []), *program, str(owner_fd)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env=self._environment(),
                    pass_fds=[] if owner_pid is None else [owner_fd],
                ).returncode = 0  # it lives on: no ResourceWarning when this object goes
        finally:
            if owner_pid is not None:
                os.close(owner_fd)
        wait_for("the cluster's supervisor to start", pid_path.exists, _START_S, 0.01)

    @property
    def _pid_file(self) -> Path:
        return self._layout.root / "supervisor.pid"

    @property
    def supervisor_pid(self) -> int | None:
        """The supervisor's PID on the host, None if it does not run."""
        try:
            pid = int(self._pid_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return pid if carries(pid, self._layout.mark) else None

    def start(self, daemon: Daemon) -> None:
        """Have the supervisor start a process, replacing one of the same name."""
        log = self._layout.logs / f"{daemon.name}.log"
        self._request(
            op="start",
            name=daemon.name,
            argv=daemon.argv,
            env={**self._environment(), **daemon.env},
            log=str(log),
            restart=daemon.restart,
        )

    def stop(self, name: str) -> None:
        """Have the supervisor kill a process and keep it down."""
        self._request(op="stop", name=name)

    def list(self) -> list[dict[str, Any]]:
        """Name, running, restarts and exit_code of every process."""
        answer: list[dict[str, Any]] = self._request(op="list")
        return answer

    def end_all(self) -> None:
        """Kill the supervisor and everything that carries the cluster's mark; wait for it."""
        wait_for(
            f"the processes of {self._layout.root.name} to end",
            lambda: not [kill_and_wait(pid) for pid in marked(self._layout.mark)],
            _END_S,
            0.01,
        )

    def tail(self, name: str) -> str:
        """The last lines a process wrote."""
        try:
            lines = (self._layout.logs / f"{name}.log").read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return "\n".join(lines[-_LOG_TAIL_LINES:])

    def _environment(self) -> dict[str, str]:
        mark, _, value = self._layout.mark.partition("=")
        return {
            "PATH": TOOL_PATH,
            "HOME": str(self._layout.root),
            "PYTHONPATH": str(_PACKAGES),
            mark: value,
        }

    def _request(self, **request: Any) -> Any:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_REQUEST_S)
            # A socket's address holds 108 bytes; a folder's descriptor makes any path short.
            folder = os.open(self._layout.root, os.O_PATH)
            try:
                connection.connect(f"/proc/self/fd/{folder}/control.sock")
            except (ConnectionRefusedError, FileNotFoundError):
                name = self._layout.root.name
                raise RuntimeError(
                    f"cluster {name} was killed; bring it up anew, or `python -m localcluster down "
                    f"--name {name}` to clear what is left"
                ) from None
            finally:
                os.close(folder)
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("r") as lines:
                return json.loads(lines.readline())


def python_program(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module of ours that needs the standard library only."""
    # -S -P: neither site-packages nor the working folder is searched for imports.
    return [sys.executable, "-S", "-P", "-m", module, *arguments]


def marked(mark: str) -> Iterator[int]:
    """PIDs of the processes whose environment holds the entry `mark`."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            pid = int(entry.name)
            if carries(pid, mark):
                yield pid


def carries(pid: int, mark: str) -> bool:
    """Whether the process exists and its environment holds the entry `mark`."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it ended, or is another user's
        return False
    return mark.encode() in environment.split(b"\0")


def kill_and_wait(pid: int) -> int:
    """SIGKILL a process that need not be a child, and wait until it is gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return pid
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        # A PID namespace's first process is gone only when all in it are.
        select.select([handle], [], [], _END_S)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)
    return pid


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it; none there is fine."""
    if folder.exists():
        shutil.rmtree(folder)
