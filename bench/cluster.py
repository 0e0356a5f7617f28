"""How fast the local cluster comes up, and how much memory it holds when idle."""

from __future__ import annotations

import re
import time
from pathlib import Path

from bench.figures import machine, show
from localcluster.cluster import Cluster
from localcluster.layout import Spec

_NAME = "bench"


def run(repeat: int) -> None:
    """Print start-up times and memory; programs are built first, so times are warm."""
    Cluster.up(Spec(name=_NAME, control_plane_only=True), tied=True, progress=_hush).down()
    print(machine())
    for title, spec, bar_s in (
        ("control plane up", Spec(name=_NAME, control_plane_only=True), 6.0),
        ("4 TPU nodes and 1 CPU node up, all Ready", Spec(name=_NAME, nodes=4), 30.0),
    ):
        up_s, down_s, memory_mib = [], [], []
        for _ in range(repeat):
            started = time.monotonic()
            cluster = Cluster.up(spec, tied=True, progress=_hush)
            up_s.append(time.monotonic() - started)
            memory_mib.append(_memory_mib(_supervisor_pids()))
            started = time.monotonic()
            cluster.down()
            down_s.append(time.monotonic() - started)
        show(title, up_s, "s", bar_s)
        show("  its memory (PSS)", memory_mib, "MiB", 1843.0 if spec.real_nodes else None)
        show("  down again", down_s, "s")


def _hush(_: str) -> None:
    return None


def _supervisor_pids() -> list[int]:
    mark = f"/{_NAME}/control.sock"
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if mark in _read(path).replace("\0", " ")
    ]


def _memory_mib(roots: list[int]) -> float:
    """Proportional set size of processes and all their descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        fields = _read(path).rpartition(")")[2].split()
        if fields:
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found: set[int] = set()
    todo = list(roots)
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo += children.get(pid, [])
    return sum(_pss_kib(pid) for pid in found) / 1024


def _pss_kib(pid: int) -> int:
    line = re.search(r"^Pss:\s+(\d+)", _read(Path(f"/proc/{pid}/smaps_rollup")), re.MULTILINE)
    return int(line.group(1)) if line else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""  # the process has ended meanwhile
