"""What a decision is made from: one immutable picture of a job and all that belongs to it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from tpujob_agent.notices import Notice
from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.core.history import History
from tpujob_operator.core.kinds import TPU_TRAINING_JOB, Ref
from tpujob_operator.core.manifests import secret
from tpujob_operator.core.manifests.names import ENDED_ANNOTATION, ROLE_PREFLIGHT, ROLE_PROGRAMS
from tpujob_operator.core.manifests.options import ManifestOptions
from tpujob_operator.core.memory import Memory
from tpujob_operator.core.nodes import NodeView, Pulse, Shape
from tpujob_operator.core.quota import Wait
from tpujob_operator.core.views import JobSetView, JobView, PodView, View

Object = Mapping[str, Any]
_T = TypeVar("_T")


class JobKey(NamedTuple):
    """Namespace and name of a job."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """What a coordinator was told.

    Hosts that are going to leave; limits of budgets; onsets of the losses since the newest
    commit that were hosts taken away.
    """

    epoch: str = ""
    notices: tuple[Notice, ...] = ()
    budgets: Mapping[str, int] = dataclasses.field(default_factory=dict)
    taken_away: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Cluster:
    """What is true of the whole cluster."""

    has_jobset: bool = True
    # numbers that change with every step are written to a job's status this often
    status_interval_ms: int = 2_000
    # a node that is not Ready and leaves its lease alone for so long is gone
    node_loss_ms: int = 60_000
    # of the slices whose nodes there are; None: not known
    shapes: frozenset[Shape] | None = None
    # of a job's status, where the CRD lacks something that we write; None: it lacks nothing
    status_schema: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """Everything a decision about one job depends on."""

    obj: Object
    job: TPUTrainingJob | None
    spec_error: str
    history: History
    memory: Memory
    options: ManifestOptions
    cluster: Cluster = Cluster()
    jobsets: tuple[JobSetView, ...] = ()
    jobs: tuple[JobView, ...] = ()
    pods: tuple[PodView, ...] = ()
    tombstones: tuple[PodView, ...] = ()  # pods that were seen and are gone
    unread: str = ""  # why not all of status.ledger could be read
    pulses: Mapping[str, Pulse] = dataclasses.field(default_factory=dict)  # of nodes in doubt
    #: TPU nodes of the job's pods and incidents, also those that are gone
    nodes: Mapping[str, NodeView] = dataclasses.field(default_factory=dict)
    told: Told = Told()
    #: why Kueue has not admitted the attempt yet
    quota: Wait = dataclasses.field(default_factory=Wait)
    refusals: tuple[str, ...] = ()
    #: why the Job controller cannot make pods, by the Job's name
    unmade: Mapping[str, str] = dataclasses.field(default_factory=dict)
    silent_since_ms: int = 0  # since when the running coordinator cannot be read; 0: it can
    silent_why: str = ""
    is_unauthorized: bool = False  # because it does not take the operator's token
    status_written_ms: int = 0
    applied_ms: int = 0  # when Secret and Service were last applied

    @property
    def key(self) -> JobKey:
        """Namespace and name."""
        return JobKey(self.obj["metadata"]["namespace"], self.obj["metadata"]["name"])

    @property
    def uid(self) -> str:
        """UID of the job."""
        return str(self.obj["metadata"]["uid"])

    @property
    def ref(self) -> Ref:
        """Reference to this incarnation of the job."""
        return Ref(TPU_TRAINING_JOB, self.key.namespace, self.key.name, self.uid)

    @property
    def is_deleting(self) -> bool:
        """Whether the job is being deleted."""
        return bool(self.obj["metadata"].get("deletionTimestamp"))

    @property
    def status(self) -> Mapping[str, Any]:
        """Status as last read or written."""
        status: Mapping[str, Any] = self.obj.get("status") or {}
        return status

    @property
    def attempt(self) -> int:
        """The current attempt; 0: none was started.

        Where the status is lost it is that of the newest JobSet; else JobSets of another number
        than the status tells are none of an attempt that was decided on.
        """
        written = int(self.status.get("attempt") or 0)
        return written or max((item.attempt for item in self.own_jobsets), default=0)

    @property
    def end_mark(self) -> tuple[str, str]:
        """How the job has ended, and the UID it had then; empty: nothing says that it has."""
        mark = self.obj["metadata"].get("annotations", {}).get(ENDED_ANNOTATION, "")
        state, _, uid = str(mark).partition(" ")
        return state, uid

    def has_condition(self, kind: str) -> bool:
        """Whether a condition of the job's status is True."""
        conditions = self.status.get("conditions") or ()
        return any(item["type"] == kind and item["status"] == "True" for item in conditions)

    @property
    def is_over(self) -> bool:
        """Whether the job has reached its end; it never runs again."""
        return self.has_condition("Succeeded") or self.has_condition("Failed")

    @functools.cached_property
    def jobset(self) -> JobSetView | None:
        """The JobSet of the current attempt, if it is there and ours."""
        return next((item for item in self.own_jobsets if item.attempt == self.attempt), None)

    @property
    def is_key_known(self) -> bool:
        """Whether the operator has the key that the current attempt was made with."""
        jobset = self.jobset
        if jobset is None or not jobset.has_agents:
            return True
        return secret.find_key(self.options, jobset.key_id) is not None

    @functools.cached_property
    def own_jobsets(self) -> tuple[JobSetView, ...]:
        """JobSets owned by this incarnation of the job."""
        return tuple(item for item in self.jobsets if item.owner_uid == self.uid)

    @functools.cached_property
    def preflight(self) -> JobView | None:
        """The Job that checks the job before it starts; it may be a deleted namesake's."""
        return self._aside(ROLE_PREFLIGHT)

    @functools.cached_property
    def programs(self) -> JobView | None:
        """The Job that compiles while the job waits; it may be a deleted namesake's."""
        return self._aside(ROLE_PROGRAMS)

    def _aside(self, role: str) -> JobView | None:
        return next((item for item in self.jobs if item.role == role), None)

    @functools.cached_property
    def of_attempts(self) -> tuple[View, ...]:
        """All JobSets, Jobs and pods that belong to some attempt."""
        others = (*self.jobs, *self.pods)
        return (*self.jobsets, *(item for item in others if item.is_of_attempts))

    @functools.cached_property
    def leftovers(self) -> tuple[View, ...]:
        """What earlier attempts, or a deleted namesake of the job, have left behind."""
        current = self.jobset.uid if self.jobset else None
        jobsets = tuple(item for item in self.jobsets if item.uid != current)
        jobs = tuple(
            item for item in self.jobs if item.owner_uid != current and item.is_of_attempts
        )
        alive = {item.uid for item in self.current_jobs}
        pods = tuple(
            pod
            for pod in self.pods
            if pod.is_of_attempts
            and pod.owner_uid not in alive
            and (pod.attempt != self.attempt or current is None)
        )
        return (*jobsets, *jobs, *pods)

    @functools.cached_property
    def current_jobs(self) -> tuple[JobView, ...]:
        """Jobs of the current attempt's JobSet."""
        if self.jobset is None:
            return ()
        return tuple(item for item in self.jobs if item.owner_uid == self.jobset.uid)

    @functools.cached_property
    def current_pods(self) -> tuple[PodView, ...]:
        """Pods whose Job is a current one; those of a replaced Job do not count."""
        alive = {item.uid for item in self.current_jobs}
        return tuple(pod for pod in self.pods if pod.owner_uid in alive)

    @property
    def workers(self) -> tuple[PodView, ...]:
        """Current worker pods."""
        return tuple(pod for pod in self.current_pods if pod.is_worker)

    def pods_of(self, job: JobView) -> tuple[PodView, ...]:
        """Pods of one Job."""
        return self._pods_by_owner.get(job.uid, ())

    def pods_since_start(self, job: JobView) -> tuple[PodView, ...]:
        """Pods of a Job since it was started or resumed; it outlives its suspension."""
        return tuple(
            pod
            for pod in self.pods_of(job)
            if job.is_since_start(pod.created, pod.deletion_asked_ms)
        )

    def gone_since_start(self, job: JobView) -> tuple[PodView, ...]:
        """Pods that a Job has had since it was started or resumed, and that are gone."""
        return tuple(
            stone
            for stone in self._tombstones_by_owner.get(job.uid, ())
            if job.is_since_start(stone.created, stone.deletion_asked_ms)
        )

    # A job has up to a thousand Jobs: what is asked for each of them must not look at all pods.

    @functools.cached_property
    def _pods_by_owner(self) -> Mapping[str, tuple[PodView, ...]]:
        return _grouped(self.pods, lambda pod: pod.owner_uid)

    @functools.cached_property
    def _tombstones_by_owner(self) -> Mapping[str, tuple[PodView, ...]]:
        return _grouped(self.tombstones, lambda stone: stone.owner_uid)


def _grouped(items: Iterable[_T], key: Callable[[_T], str]) -> Mapping[str, tuple[_T, ...]]:
    groups: dict[str, list[_T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return {name: tuple(group) for name, group in groups.items()}
