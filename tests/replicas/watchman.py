"""What must hold at every moment, seen in every version of every JobSet and job."""

from __future__ import annotations

import collections

from localcluster.kubeapi import Object
from tests.sweep.census import Census
from tpujob_operator.core.kinds import JOB_SET, TPU_TRAINING_JOB, Kind

_JOB = "tpujob.dev/job"
_ROUNDING_S = 0.001


class Watchman:
    """Listens to a census; ``complaints`` of a namespace are what was wrong there."""

    def __init__(self, census: Census) -> None:
        self._jobsets: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
        self._wall_s: dict[str, float] = {}
        self._found: dict[str, list[str]] = collections.defaultdict(list)
        census.listeners.append(self._see)

    def complaints(self, namespace: str) -> list[str]:
        """All that was wrong in a namespace so far."""
        return list(self._found[namespace])

    def _see(self, event: str, kind: Kind, obj: Object) -> None:
        if kind is JOB_SET:
            self._count(event, obj)
        if kind is TPU_TRAINING_JOB and event != "DELETED":
            self._audit(obj)

    def _count(self, event: str, jobset: Object) -> None:
        meta = jobset["metadata"]
        job = (meta["namespace"], (meta.get("labels") or {}).get(_JOB, ""))
        if event == "DELETED" or meta.get("deletionTimestamp"):
            self._jobsets[job].discard(meta["name"])
            return
        self._jobsets[job].add(meta["name"])
        if len(self._jobsets[job]) > 1:
            self._found[job[0]].append(f"JobSets at once: {sorted(self._jobsets[job])}")

    def _audit(self, job: Object) -> None:
        meta = job["metadata"]
        goodput = (job.get("status") or {}).get("goodput")
        if not goodput:
            return
        wall_s = goodput["wallSeconds"]
        gap_s = sum(goodput["seconds"].values()) + goodput.get("unsettledSeconds", 0) - wall_s
        if abs(gap_s) > _ROUNDING_S:
            self._found[meta["namespace"]].append(f"types of time: {gap_s:+.3f} s beside the wall")
        if wall_s < self._wall_s.get(meta["uid"], 0.0):
            self._found[meta["namespace"]].append(f"the wall time fell to {wall_s} s")
        self._wall_s[meta["uid"]] = wall_s
