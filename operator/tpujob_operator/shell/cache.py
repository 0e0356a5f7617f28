"""What the operator knows of jobs and their children, fed by reflectors and by own writes."""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar

from tpujob_operator.core.kinds import CHILDREN, JOB, JOB_SET, POD, TPU_TRAINING_JOB, Kind, Ref
from tpujob_operator.core.ownership import owning_job
from tpujob_operator.core.projection import VIEW_OF
from tpujob_operator.core.snapshot import JobKey
from tpujob_operator.core.views import JobSetView, JobView, PodView, View

#: Deleted pods remembered for each job, newest last.
_MOST_TOMBSTONES = 64
#: Deleted objects whose late answers are told from objects that are new.
_MOST_GONE = 4096

Object = Mapping[str, Any]
_V = TypeVar("_V", bound=View)


@dataclasses.dataclass(slots=True)
class Family:
    """The children of one job, by kind and name."""

    objects: dict[Kind, dict[str, View]] = dataclasses.field(
        default_factory=lambda: {kind: {} for kind in CHILDREN}
    )
    tombstones: list[PodView] = dataclasses.field(default_factory=list)


class _Place(NamedTuple):
    """Where a child is kept."""

    kind: Kind
    key: JobKey
    name: str


class Cache:
    """Objects by job. Older versions never replace newer ones, so own writes can be put in."""

    def __init__(self, changed: Callable[[JobKey], None], steady_ms: Callable[[], int]) -> None:
        """``changed`` hears of every job that has changed; ``steady_ms``: see ``clock.Clock``."""
        self._changed = changed
        self._steady_ms = steady_ms
        self._jobs: dict[JobKey, Object] = {}
        self._families: dict[JobKey, Family] = {}
        self._places: dict[str, _Place] = {}  # of children, by their UID
        self._gone: dict[str, float] = {}  # versions at which objects went, by UID, oldest first

    # ---- what is known

    def job(self, key: JobKey) -> Object | None:
        """The custom resource itself, without its managed fields, or nothing."""
        return self._jobs.get(key)

    def keys(self) -> list[JobKey]:
        """All jobs."""
        return list(self._jobs)

    def all_keys(self) -> set[JobKey]:
        """All jobs, and those that are gone while something of theirs is left."""
        return {*self._jobs, *self._families}

    def jobsets(self, key: JobKey) -> tuple[JobSetView, ...]:
        """JobSets of a job and of its deleted namesakes, by name."""
        return self._children(key, JOB_SET, JobSetView)

    def jobs(self, key: JobKey) -> tuple[JobView, ...]:
        """Jobs of those JobSets, and those made before an attempt, by name."""
        return self._children(key, JOB, JobView)

    def pods(self, key: JobKey) -> tuple[PodView, ...]:
        """Pods of those Jobs, by name."""
        return self._children(key, POD, PodView)

    def tombstones(self, key: JobKey) -> tuple[PodView, ...]:
        """Pods of a job that were seen before and are gone."""
        family = self._families.get(key)
        return tuple(family.tombstones) if family else ()

    def _children(self, key: JobKey, kind: Kind, view: type[_V]) -> tuple[_V, ...]:
        family = self._families.get(key)
        found = family.objects[kind].values() if family else ()
        return tuple(
            sorted((item for item in found if isinstance(item, view)), key=lambda item: item.name)
        )

    # ---- what changes it

    def doom(self, uid: str) -> None:
        """Remember that we have asked for a child's deletion, until it is seen gone."""
        place = self._places.get(uid)
        if place is not None:
            table = self._families[place.key].objects[place.kind]
            table[place.name] = dataclasses.replace(table[place.name], is_doomed=True)

    def lose(self, ref: Ref) -> None:
        """Take in what a deletion that finds nothing proves: this incarnation is gone."""
        if ref.kind is TPU_TRAINING_JOB:
            known = self._jobs.get(JobKey(ref.namespace, ref.name))
            if known is not None and known["metadata"]["uid"] == ref.uid:
                self._remove_job(known, version_of(known))
            return
        place = self._places.get(ref.uid)
        if place is not None:
            last = self._families[place.key].objects[place.kind][place.name]
            self._forget(last, last.version)

    def put(self, kind: Kind, obj: Object, listed_at: float = 0) -> bool:
        """Store an object unless it is known as new; say whether anything was stored.

        ``listed_at``: the version of the listing that returned it. What is known and not newer
        than the listing makes way, even for something older: the cluster may have been restored.
        """
        meta = obj["metadata"]
        if max(version_of(obj), listed_at) <= self._gone.get(meta["uid"], 0):
            return False  # the answer to a write or a listing, behind the watch that told the end
        if kind is TPU_TRAINING_JOB:
            return self._put_job(obj, listed_at)
        key = JobKey(meta["namespace"], owning_job(kind, meta))
        place = self._places.get(meta["uid"])
        if place and place.key != key:  # somebody has changed its labels
            self._forget(VIEW_OF[kind](obj), version_of(obj))
        return bool(key.name) and self._put_child(key, kind, obj, listed_at)

    def _put_job(self, obj: Object, listed_at: float) -> bool:
        meta = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
        key = JobKey(meta["namespace"], meta["name"])
        known = self._jobs.get(key)
        if known and not is_news(version_of(known), version_of(obj), listed_at):
            return False
        self._jobs[key] = {**obj, "metadata": meta}
        self._changed(key)
        return True

    def _put_child(self, key: JobKey, kind: Kind, obj: Object, listed_at: float) -> bool:
        table = self._families[key].objects[kind] if key in self._families else {}
        known = table.get(obj["metadata"]["name"])
        if known and not is_news(known.version, version_of(obj), listed_at):
            return False
        view = self._dated(VIEW_OF[kind](obj), known)
        if known and known.uid != view.uid:
            self._forget(known, known.version)
        if known and known.uid == view.uid and known.is_doomed:
            view = dataclasses.replace(view, is_doomed=True)
        family = self._families.setdefault(key, Family())
        family.objects[kind][view.name] = view
        self._places[view.uid] = _Place(kind, key, view.name)
        self._changed(key)
        return True

    def remove(self, kind: Kind, obj: Object) -> None:
        """Forget an object, unless a namesake has taken its place; remember a lost pod."""
        if kind is TPU_TRAINING_JOB:
            self._remove_job(obj, version_of(obj))
            return
        if obj["metadata"]["uid"] in self._places:
            place = self._places[obj["metadata"]["uid"]]
            known = self._families[place.key].objects[kind].get(place.name)
            self._forget(self._dated(VIEW_OF[kind](obj), known), version_of(obj))

    def _dated(self, view: View, known: View | None) -> View:
        """A view of a pod that is being deleted says since when that is known."""
        if not isinstance(view, PodView) or not view.deletion_ends_ms:
            return view
        seen_ms = self._steady_ms()
        if isinstance(known, PodView) and known.uid == view.uid:
            seen_ms = known.deletion_seen_ms or seen_ms
        return dataclasses.replace(view, deletion_seen_ms=seen_ms)

    def _remove_job(self, obj: Object, version: float) -> None:
        key = JobKey(obj["metadata"]["namespace"], obj["metadata"]["name"])
        known = self._jobs.get(key)
        if known is not None and known["metadata"]["uid"] == obj["metadata"]["uid"]:
            del self._jobs[key]
            self._note_gone(obj["metadata"]["uid"], version)
            self._changed(key)

    def _note_gone(self, uid: str, version: float) -> None:
        self._gone[uid] = version
        if len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]

    def _forget(self, last: View, version: float) -> None:
        """Forget a child, of which ``last`` was seen last; it was gone at this version."""
        self._note_gone(last.uid, version)
        kind, key, name = self._places.pop(last.uid)
        family = self._families[key]
        del family.objects[kind][name]
        if isinstance(last, PodView) and last.owner_uid in self._places:
            stone = dataclasses.replace(last, is_gone=True)
            family.tombstones = [*family.tombstones, stone][-_MOST_TOMBSTONES:]
        if isinstance(last, JobView):
            family.tombstones = [one for one in family.tombstones if one.owner_uid != last.uid]
        if not any(family.objects.values()):
            del self._families[key]
        self._changed(key)

    def prune(
        self, kind: Kind, namespace: str | None, listed: Collection[str], listed_at: float
    ) -> int:
        """Forget what a listing lacks, though it is older than it; return how many that were.

        Args:
            kind: what was listed.
            namespace: where; None: everywhere.
            listed: UIDs of what there is.
            listed_at: the version of the listing.
        """
        if math.isinf(listed_at):
            self._gone.clear()  # of versions that mean nothing any more
        if kind is TPU_TRAINING_JOB:
            return self._prune_jobs(namespace, listed, listed_at)
        gone = [
            view
            for key, family in self._families.items()
            if namespace in (None, key.namespace)
            for view in family.objects[kind].values()
            if view.uid not in listed and view.version <= listed_at
        ]
        for view in gone:
            self._forget(view, 0 if math.isinf(listed_at) else listed_at)
        return len(gone)

    def _prune_jobs(self, namespace: str | None, listed: Collection[str], at: float) -> int:
        gone = [
            obj
            for key, obj in self._jobs.items()
            if namespace in (None, key.namespace)
            and obj["metadata"]["uid"] not in listed
            and version_of(obj) <= at
        ]
        for obj in gone:
            self._remove_job(obj, 0 if math.isinf(at) else at)
        return len(gone)


def version_of(obj: Object) -> int:
    """An object's resource version, which Kubernetes declares comparable since 1.35."""
    return int(obj["metadata"]["resourceVersion"])


def is_news(known: int, version: int, listed_at: float = 0) -> bool:
    """Whether a version replaces the known one: a newer one, or another one of a listing.

    ``listed_at``: the version of the listing, if it is of one.
    """
    return version > known or (version != known and known <= listed_at)
