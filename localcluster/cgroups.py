"""The cgroups that hold a cluster's containers, in every hierarchy of version 1 or in version 2."""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

_REMOVE_S = 10.0
_NEEDED = {"cpu", "cpuset", "memory", "pids"}
_CPUSET = ("cpuset.cpus", "cpuset.mems")


@dataclass(frozen=True)
class Hierarchy:
    """A mounted cgroup hierarchy."""

    mount: Path
    version: int


def hierarchies(mountinfo: str | None = None) -> list[Hierarchy]:
    """The cgroup hierarchies of this host: several in version 1, one in version 2.

    Args:
        mountinfo: The text of /proc/self/mountinfo, read from there if not given.
    """
    text = mountinfo or Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    versions = {"cgroup": 1, "cgroup2": 2}
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        kind = after.split()[0]
        if kind in versions:
            found.append(Hierarchy(Path(before.split()[4]), versions[kind]))
    return found


def create(path: str) -> None:
    """Make a cgroup (`cluster/node`) everywhere, ready to hold containers.

    Raises:
        RuntimeError: Version 2 hands down too few controllers, as inside a container.
    """
    for hierarchy in hierarchies():
        folder = hierarchy.mount
        for part in Path(path).parts:
            if hierarchy.version == 2:
                _hand_down_controllers(folder)
            folder /= part
            folder.mkdir(exist_ok=True)
            if hierarchy.version == 1:
                _copy_cpuset(folder)
    if len(hierarchies()) == 1:
        _check_controllers(folder)


def _check_controllers(folder: Path) -> None:
    available = (folder / "cgroup.controllers").read_text(encoding="utf-8").split()
    if lacking := _NEEDED - set(available):
        raise RuntimeError(
            f"this host's cgroups hand down no {', '.join(sorted(lacking))} controller, which the "
            "kubelet needs: inside a container this is so as long as processes live in the root "
            "cgroup; run on the host itself"
        )


def _hand_down_controllers(folder: Path) -> None:
    available = (folder / "cgroup.controllers").read_text(encoding="utf-8").split()
    for controller in available:
        # One by one: a controller that may not be handed down must not hinder the others.
        with contextlib.suppress(OSError):
            (folder / "cgroup.subtree_control").write_text(f"+{controller}", encoding="utf-8")


def _copy_cpuset(folder: Path) -> None:
    # A version 1 cpuset begins empty, and nothing can run in an empty one.
    for name in _CPUSET:
        own = folder / name
        if own.exists() and not own.read_text(encoding="utf-8").strip():
            own.write_text((folder.parent / name).read_text(encoding="utf-8"), encoding="utf-8")


def remove(path: str) -> None:
    """Remove a cgroup and all below it, everywhere; none there is fine.

    Raises:
        TimeoutError: Something still runs in one.
    """
    deadline = time.monotonic() + _REMOVE_S
    while left := [h.mount / path for h in hierarchies() if (h.mount / path).is_dir()]:
        for folder in left:
            _rmdir_all(folder)
        # Processes that were killed leave their cgroup a little later.
        if time.monotonic() > deadline:
            raise TimeoutError(f"still in use after {_REMOVE_S:.0f} s: {left[0]}")
        time.sleep(0.01)


def _rmdir_all(folder: Path) -> None:
    for parent, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            Path(parent).rmdir()
