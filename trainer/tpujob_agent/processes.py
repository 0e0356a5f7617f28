"""Linux process plumbing: parents' death, orphans, names of the dead."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from tpujob_agent.protocol import Env

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
#: In the command line of Python's resource tracker.
_TRACKER = b"multiprocessing.resource_tracker"
_ROUNDS = 100
_GONE = (b"X", b"0", b"0")  # state, parent and group of a process that has ended meanwhile
#: Left by a killed libtpu; the next one would refuse to open the chips.
LIBTPU_LOCKFILE = Path("/tmp/libtpu_lockfile")  # noqa: S108 - libtpu's own choice of place


def _prctl(option: int, value: int) -> None:
    # A Python without libffi has no such safety net; the container's own cleaning remains.
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes  # noqa: PLC0415 - may be missing

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` ends, which may just have happened."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, as PID 1 is anyway."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_memory() -> None:
    """Keep others of the same user, as the program is, from reading our memory and environment.

    They hold the job's token. CAP_SYS_PTRACE and CAP_PERFMON, which containers lack, open them.
    """
    _prctl(_PR_SET_DUMPABLE, 0)


def exit_of(status: int) -> tuple[int | None, int | None]:
    """``(exit_code, signal)`` of a wait status; one of them is None."""
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def kill_group(pid: int, agent: int) -> None:
    """SIGKILL a trainer's process group, or the process while it has no group of its own yet.

    ``agent`` is the process among whose descendants the group is looked for. Python's
    resource tracker is spared: it ends by itself when its clients have, and then
    removes their shared memory and semaphores, which would fill the pod's /dev/shm otherwise.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    members = _group(pid, agent)
    if not any(map(_is_tracker, members)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        return
    for _ in range(_ROUNDS):  # a member may fork while the others are being killed
        targets = [member for member in members if not _is_tracker(member)]
        for target in targets:
            with contextlib.suppress(ProcessLookupError):
                os.kill(target, signal.SIGKILL)
        if not targets:
            return
        members = _group(pid, agent)


def _group(leader: int, agent: int) -> list[int]:
    """Living processes of a process group, its leader excepted, among an agent's descendants."""
    found, unseen = [], _children(agent)
    while unseen:
        pid = unseen.pop()
        unseen += _children(pid)
        state, _, group = _read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()[:3] or _GONE
        if int(group) == leader != pid and state not in b"ZX":
            found.append(pid)
    return found


def _children(pid: int) -> list[int]:
    """Children of a process, whichever of its threads has made them."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in _read(task).split()]


def state_of(pid: int) -> tuple[str, int]:
    """State of a process as in /proc, and its CPU time so far, in ticks.

    R, S, D, T (stopped by a signal), t (traced), Z; empty: there is no such process.
    """
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()
    return (fields[0].decode(), int(fields[11]) + int(fields[12])) if fields else ("", 0)


def _is_tracker(pid: int) -> bool:
    return _TRACKER in _read(Path(f"/proc/{pid}/cmdline"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def kill_strays(fork_server: int) -> int:
    """Kill what a dead trainer left in other process groups, as it may hold devices.

    Strays have become children of this process. They show the record's variable (exec'd) or
    the fork server's command line (forked). Returns how many were killed.
    """
    forked = _read(Path(f"/proc/{fork_server}/cmdline"))
    killed = 0
    for child in _children(os.getpid()):
        if child == fork_server:
            continue
        environ = b"\0" + _read(Path(f"/proc/{child}/environ"))
        line = _read(Path(f"/proc/{child}/cmdline"))
        is_ours = f"\0{Env.RECORD}=".encode() in environ or (line and line == forked)
        if is_ours and _TRACKER not in line:
            kill_group(child, os.getpid())
            killed += 1
    return killed


def remove_leftovers() -> None:
    """Remove files that a killed trainer leaves and its successor stumbles over."""
    with contextlib.suppress(OSError):
        LIBTPU_LOCKFILE.unlink(missing_ok=True)
