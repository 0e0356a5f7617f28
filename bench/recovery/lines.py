"""What the leaders of all worlds print, with the time at which containerd read it."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import json
import re
import threading
import time
from pathlib import Path

from localcluster.cluster import Cluster

_POLL_S = 0.1
_BEGUN = re.compile(r"first step (\d+) done:")


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A finished step, or that a world has finished its first one. Times since the epoch."""

    at: float
    step: int
    is_begin: bool = False


def parse(text: str) -> Line | None:
    """A line of a container's log, as the kubelet keeps it; None: it tells of no step."""
    stamp, _, rest = text.partition(" ")
    said = rest.partition(" ")[2].partition(" ")[2]  # after the stream, and F for a full line
    begun = _BEGUN.match(said)
    if begun:
        return Line(_seconds(stamp), int(begun[1]), is_begin=True)
    if not said.startswith('{"step"'):
        return None
    with contextlib.suppress(ValueError):  # cut off by the end of its process
        return Line(_seconds(stamp), json.loads(said)["step"])
    return None


def _seconds(stamp: str) -> float:
    return dt.datetime.fromisoformat(stamp).timestamp()


class Follower:
    """Follows the logs of all pods of a namespace from now on, on all nodes."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        nodes = cluster.spec.tpu_nodes
        self._patterns = [(cluster.pod_logs(node), f"{namespace}_*/*/*.log") for node in nodes]
        self._since = time.time()  # logs of an earlier job may still lie there
        self._offsets: dict[Path, int] = {}
        self._lines: list[Line] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def lines(self) -> list[Line]:
        """All lines so far, by time."""
        with self._lock:
            return sorted(self._lines, key=lambda line: line.at)

    def stop(self) -> None:
        """Follow no more."""
        self._stopped.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._stopped.wait(_POLL_S):
            for folder, pattern in self._patterns:
                with contextlib.suppress(FileNotFoundError):  # a pod has gone meanwhile
                    for path in folder.glob(pattern):
                        self._read(path)

    def _read(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            whole, newline, _ = file.read().rpartition(b"\n")
        if not newline:
            return
        self._offsets[path] = self._offsets.get(path, 0) + len(whole) + 1
        found = [parse(line) for line in whole.decode(errors="replace").splitlines()]
        with self._lock:
            self._lines += [line for line in found if line and line.at >= self._since]
