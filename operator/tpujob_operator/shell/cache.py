"""What the operator knows of the cluster: plain dictionaries fed by watches and by own writes."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tpujob_operator.core.kinds import CHILDREN, TPU_TRAINING_JOB, Kind
from tpujob_operator.core.ownership import owning_job
from tpujob_operator.core.snapshot import JobKey, Tombstone

#: Deleted pods remembered for each job, newest last.
_MOST_TOMBSTONES = 64

Object = Mapping[str, Any]


@dataclasses.dataclass(slots=True)
class Family:
    """The children of one job, by kind and name."""

    objects: dict[Kind, dict[str, Object]] = dataclasses.field(
        default_factory=lambda: {kind: {} for kind in CHILDREN}
    )
    tombstones: list[Tombstone] = dataclasses.field(default_factory=list)


class Cache:
    """Objects by job. Older versions never replace newer ones, so own writes can be put in."""

    def __init__(self, changed: Callable[[JobKey], None]) -> None:
        self._changed = changed
        self._jobs: dict[JobKey, Object] = {}
        self._families: dict[JobKey, Family] = {}
        self._doomed: set[str] = set()
        self.events = 0

    def job(self, key: JobKey) -> Object | None:
        """The custom resource itself, or nothing."""
        return self._jobs.get(key)

    def keys(self) -> list[JobKey]:
        """All jobs."""
        return list(self._jobs)

    def children(self, key: JobKey, kind: Kind) -> Iterable[Object]:
        """Children of one kind that carry the job's label."""
        family = self._families.get(key)
        return tuple(family.objects[kind].values()) if family else ()

    def tombstones(self, key: JobKey) -> tuple[Tombstone, ...]:
        """Pods of a job that were seen before and are gone."""
        family = self._families.get(key)
        return tuple(family.tombstones) if family else ()

    def doom(self, uid: str) -> None:
        """Remember that we have asked for an object's deletion, until it is seen gone."""
        self._doomed.add(uid)

    @property
    def doomed(self) -> frozenset[str]:
        """UIDs of objects that are still there although their deletion was asked for."""
        return frozenset(self._doomed)

    def observe(self, kind: Kind, event_type: str | None, obj: Object) -> None:
        """Take in a watch event; ``event_type`` is None for objects of a listing."""
        self.events += 1
        if event_type == "DELETED":
            self.remove(kind, obj)
        else:
            self.put(kind, obj)

    def put(self, kind: Kind, obj: Object) -> bool:
        """Store an object, unless the stored one is as new; say whether it was stored."""
        key, table = self._table(kind, obj)
        if table is None or key is None:
            return False
        name = obj["metadata"]["name"] if kind is not TPU_TRAINING_JOB else key
        if not _is_newer(obj, table.get(name)):
            return False
        table[name] = obj
        self._changed(key)
        return True

    def has(self, kind: Kind, obj: Object) -> bool:
        """Whether this incarnation of an object is known."""
        uid = obj["metadata"]["uid"]
        return any(known["metadata"]["uid"] == uid for known in self._of_job(kind, obj))

    def _of_job(self, kind: Kind, obj: Object) -> Iterable[Object]:
        key, table = self._table(kind, obj)
        if table is None or key is None:
            return ()
        found = table.get(key if kind is TPU_TRAINING_JOB else obj["metadata"]["name"])
        return () if found is None else (found,)

    def remove(self, kind: Kind, obj: Object) -> None:
        """Forget an object, unless a namesake has taken its place; remember a lost pod."""
        key, table = self._table(kind, obj)
        if table is None or key is None:
            return
        name = obj["metadata"]["name"] if kind is not TPU_TRAINING_JOB else key
        known = table.get(name)
        if known is not None and known["metadata"]["uid"] == obj["metadata"]["uid"]:
            del table[name]
        self._doomed.discard(obj["metadata"]["uid"])
        self._bury(key, kind, obj)
        self._drop_empty_family(key)
        self._changed(key)

    def prune(self, kind: Kind, listed: Iterable[Object], before: int) -> Iterator[Object]:
        """Yield cached objects of a kind that a listing lacks, though older than ``before``.

        A watch that lost its place is restarted with a listing, which says
        nothing about objects that vanished in between.
        """
        alive = {obj["metadata"]["uid"] for obj in listed}
        for obj in list(self._all(kind)):
            if obj["metadata"]["uid"] not in alive and version_of(obj) <= before:
                yield obj

    def _all(self, kind: Kind) -> Iterator[Object]:
        if kind is TPU_TRAINING_JOB:
            yield from self._jobs.values()
            return
        for family in self._families.values():
            yield from family.objects[kind].values()

    def _table(self, kind: Kind, obj: Object) -> tuple[JobKey | None, dict[Any, Object] | None]:
        meta = obj["metadata"]
        if kind is TPU_TRAINING_JOB:
            return JobKey(meta["namespace"], meta["name"]), self._jobs
        owner = owning_job(kind, meta)
        if not owner:
            return None, None
        key = JobKey(meta["namespace"], owner)
        return key, self._families.setdefault(key, Family()).objects[kind]

    def _bury(self, key: JobKey, kind: Kind, obj: Object) -> None:
        family = self._families.get(key)
        if family is None:
            return
        tombstone = Tombstone.of(kind, obj)
        if tombstone is not None:
            family.tombstones = [*family.tombstones, tombstone][-_MOST_TOMBSTONES:]
        uids = {job["metadata"]["uid"] for job in family.objects[CHILDREN[1]].values()}
        family.tombstones = [stone for stone in family.tombstones if stone.job_uid in uids]

    def _drop_empty_family(self, key: JobKey) -> None:
        family = self._families.get(key)
        if family is not None and not any(family.objects.values()):
            del self._families[key]


def version_of(obj: Object) -> int:
    """An object's resource version, which Kubernetes declares comparable since 1.35."""
    return int(obj["metadata"]["resourceVersion"])


def _is_newer(obj: Object, known: Object | None) -> bool:
    if known is None:
        return True
    if known["metadata"]["uid"] != obj["metadata"]["uid"]:
        return version_of(obj) > version_of(known)
    return version_of(obj) > version_of(known)
