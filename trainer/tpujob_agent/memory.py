"""Whether the kernel has killed for lack of memory: what this container's cgroup has counted."""

from __future__ import annotations

import contextlib
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
#: Version 2 of cgroups, then version 1.
_COUNTERS = ("memory.events", "memory/memory.oom_control")
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
_NO_LIMIT = 1 << 60  # version 1 writes a number near 2^63


def kills(cgroup: Path = CGROUP) -> int:
    """Processes of this container that were killed for lack of memory; 0 where nobody counts."""
    for line in _read(cgroup, _COUNTERS).splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill":
            return int(number)
    return 0


def limit(cgroup: Path = CGROUP) -> str:
    """Whose memory it was, in words."""
    text = _read(cgroup, _LIMITS).strip()
    if text.isdecimal() and int(text) < _NO_LIMIT:
        return f"the container's limit is {int(text) >> 20} MiB"
    return "the container has no limit, so it was the node's memory"


def _read(cgroup: Path, names: tuple[str, ...]) -> str:
    for name in names:
        with contextlib.suppress(OSError):
            return (cgroup / name).read_text()
    return ""
