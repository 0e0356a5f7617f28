"""Views of Kubernetes objects: cheap, typed access to the parts that decisions need."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from tpujob_agent.protocol import CoordinatorConfig, Env
from tpujob_operator.api.base import parse_rfc3339
from tpujob_operator.core.kinds import JOB, JOB_SET, POD, Kind, Ref
from tpujob_operator.core.manifests.names import (
    ATTEMPT_LABEL,
    AVOIDED_ANNOTATION,
    CHECKED_ANNOTATION,
    COORDINATOR,
    ROLE_LABEL,
    ROLE_PREFLIGHT,
    ROLE_PROGRAMS,
    ROLE_WORKER,
    SHAPE_ANNOTATION,
    SLICE_INDEX_LABEL,
)

#: The Job controller sets it as a label and as an annotation.
HOST_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
REPLICATED_JOB_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"

#: What the Job controller takes at most to make one pod of many, and to write that it has; times
#: are whole seconds.
_POD_MS, _WRITING_MS = 50, 2_000
#: Reason and exit code of a container that was killed as a whole.
_OUT_OF_MEMORY = ("OOMKilled", 137)

Object = Mapping[str, Any]


class View:
    """Base of all views."""

    kind: Kind

    def __init__(self, obj: Object, *, doomed: bool = False) -> None:
        self.obj = obj
        self.is_doomed = doomed  # we have asked for its deletion

    @property
    def name(self) -> str:
        """Name of the object."""
        return str(self.obj["metadata"]["name"])

    @property
    def uid(self) -> str:
        """UID of the object."""
        return str(self.obj["metadata"]["uid"])

    @property
    def ref(self) -> Ref:
        """Reference to this incarnation."""
        return Ref(self.kind, str(self.obj["metadata"]["namespace"]), self.name, self.uid)

    @property
    def is_deleting(self) -> bool:
        """Whether the object is being deleted, or we have asked for it."""
        return self.is_doomed or bool(self.obj["metadata"].get("deletionTimestamp"))

    @property
    def owner_uid(self) -> str:
        """UID of the controller of this object; empty: none."""
        return owner_uid_of(self.obj)

    @property
    def attempt(self) -> int:
        """Attempt the object belongs to; 0: not labelled."""
        label = self._label(ATTEMPT_LABEL)
        return int(label) if label.isdigit() else 0

    @property
    def role(self) -> str:
        """What it is for, if it is no JobSet or Job of one."""
        return self._label(ROLE_LABEL)

    @property
    def is_of_attempts(self) -> bool:
        """Whether the object belongs to an attempt, and not to what is done before one."""
        return self.role not in (ROLE_PREFLIGHT, ROLE_PROGRAMS)

    def _label(self, name: str) -> str:
        return str(self.obj["metadata"].get("labels", {}).get(name, ""))

    @functools.cached_property
    def _conditions(self) -> dict[str, Mapping[str, Any]]:
        conditions = self.obj.get("status", {}).get("conditions") or ()
        return {item["type"]: item for item in conditions}

    def _condition(self, kind: str) -> Mapping[str, Any] | None:
        condition = self._conditions.get(kind)
        return condition if condition and condition["status"] == "True" else None


class Exit(NamedTuple):
    """The end of a container that did not end well."""

    at_ms: int  # to the second
    code: int
    message: str  # its last words
    is_out_of_memory: bool  # and killed for it as a whole


class JobSetView(View):
    """A JobSet: one attempt."""

    kind = JOB_SET

    @property
    def has_agents(self) -> bool:
        """Whether agents run its programs, and a coordinator watches over them."""
        replicated = self.obj["spec"].get("replicatedJobs", ())
        return any(item["name"] == COORDINATOR for item in replicated)

    @property
    def avoided(self) -> tuple[str, ...]:
        """Nodes that its worker pods keep away from."""
        names = self.obj["metadata"].get("annotations", {}).get(AVOIDED_ANNOTATION, "")
        return tuple(names.split(",")) if names else ()

    @property
    def is_suspended(self) -> bool:
        """Whether the JobSet is asked to keep its Jobs suspended."""
        return bool(self.obj["spec"].get("suspend"))

    @property
    def is_completed(self) -> bool:
        """Whether the coordinator ended well."""
        return self._condition("Completed") is not None

    @property
    def shape(self) -> str:
        """What the attempt was made from, see ``manifests.shape``."""
        return str(self.obj["metadata"].get("annotations", {}).get(SHAPE_ANNOTATION, ""))

    @functools.cached_property
    def budgets(self) -> Mapping[str, int]:
        """The limits that the attempt's coordinator begins with; empty: not known."""
        found = next(
            (
                variable["value"]
                for replicated in self.obj["spec"].get("replicatedJobs", ())
                for container in replicated["template"]["spec"]["template"]["spec"]["containers"]
                for variable in container.get("env", ())
                if variable["name"] == Env.COORDINATOR_CONFIG
            ),
            "",
        )
        return CoordinatorConfig.from_json(found).budgets if found else {}

    @property
    def failure(self) -> str | None:
        """JobSet's words about its failure, or nothing."""
        condition = self._condition("Failed")
        return None if condition is None else str(condition.get("message", "the JobSet failed"))


class JobView(View):
    """A Job of a JobSet: the coordinator's, or one slice. Or a preflight's."""

    kind = JOB

    @property
    def checked(self) -> str:
        """Digest of what a preflight checks."""
        return str(self.obj["metadata"].get("annotations", {}).get(CHECKED_ANNOTATION, ""))

    @property
    def is_coordinator(self) -> bool:
        """Whether this Job runs the coordinator."""
        return self._label(REPLICATED_JOB_LABEL) == COORDINATOR

    @property
    def slice_index(self) -> int:
        """Index of the slice; meaningless for the coordinator's Job."""
        label = self._label(SLICE_INDEX_LABEL)
        return int(label) if label.isdigit() else 0

    @property
    def is_suspended(self) -> bool:
        """Whether the Job is to have no pods, or has not been resumed yet."""
        return bool(self.obj["spec"].get("suspend")) or self._condition("Suspended") is not None

    @property
    def hosts(self) -> int:
        """Pods the Job is to have."""
        return int(self.obj["spec"].get("parallelism", 1))

    @property
    def failed(self) -> int:
        """Pods the Job controller counts as failed since the Job was started or resumed."""
        return int(self.obj.get("status", {}).get("failed") or 0)

    @property
    def started(self) -> str:
        """When the Job was started or resumed, as Kubernetes writes it; empty: not yet."""
        return str(self.obj.get("status", {}).get("startTime") or "")

    @property
    def is_resumed(self) -> bool:
        """Whether the Job was suspended before it was started."""
        return self._conditions.get("Suspended", {}).get("status") == "False"

    def is_since_start(self, created: str, deletion_asked_ms: int) -> bool:
        """Whether a pod with these times is of the Job since it was started or resumed.

        The controller writes the time of a resumption when it has made the pods. A pod that is as
        young as those, but was deleted before, is one that the suspension has ended.
        """
        if not self.started:
            return False
        started_ms = parse_rfc3339(self.started)
        if self.is_resumed and 0 < deletion_asked_ms <= started_ms:
            return False
        return parse_rfc3339(created) >= started_ms - _WRITING_MS - _POD_MS * self.hosts

    @property
    def is_succeeded(self) -> bool:
        """Whether all pods of the Job have ended well; it may still wait for older ones."""
        return any(self._condition(kind) for kind in ("Complete", "SuccessCriteriaMet"))

    @property
    def is_over(self) -> bool:
        """Whether the Job is complete or failed, or about to be."""
        ends = ("Complete", "SuccessCriteriaMet", "Failed", "FailureTarget")
        return any(self._condition(kind) for kind in ends)

    @property
    def failure(self) -> str:
        """Why the Job has failed, in the Job controller's words; empty: it has not."""
        return str((self._condition("Failed") or {}).get("message", ""))


class PodView(View):
    """A pod of a worker or of the coordinator."""

    kind = POD

    @property
    def is_worker(self) -> bool:
        """Whether the pod is a host of a slice."""
        return self.role == ROLE_WORKER

    @property
    def place(self) -> tuple[int, int]:
        """Slice and host index."""
        slice_label, host_label = self._label(SLICE_INDEX_LABEL), self._label(HOST_INDEX_LABEL)
        return (
            int(slice_label) if slice_label.isdigit() else 0,
            int(host_label) if host_label.isdigit() else 0,
        )

    @property
    def created(self) -> str:
        """When the pod was created, as Kubernetes writes it."""
        return str(self.obj["metadata"].get("creationTimestamp", ""))

    @property
    def node(self) -> str:
        """Node the pod is bound to; empty: none yet."""
        return str(self.obj["spec"].get("nodeName", ""))

    @property
    def deletion_ends_ms(self) -> int:
        """When its grace period is over; 0: nobody has deleted it."""
        return deletion_ends_ms_of(self.obj)

    @property
    def deletion_asked_ms(self) -> int:
        """When somebody deleted it, to the second; 0: nobody has."""
        return deletion_asked_ms_of(self.obj)

    @property
    def disruption(self) -> str:
        """Why Kubernetes itself ends the pod, as one word; empty: it does not."""
        return str((self._condition("DisruptionTarget") or {}).get("reason", ""))

    @property
    def phase(self) -> str:
        """Phase as Kubernetes tells it."""
        return str(self.obj.get("status", {}).get("phase", ""))

    @property
    def is_lost(self) -> bool:
        """Whether the pod will not come back: deleted, evicted, or failed as a whole."""
        return self.is_deleting or self.phase == "Failed"

    @property
    def failure(self) -> str:
        """Why the pod was lost, in the words of Kubernetes."""
        status = self.obj.get("status", {})
        disruption = self._condition("DisruptionTarget")
        if disruption is not None:
            return f"{disruption.get('reason', '')}: {disruption.get('message', '')}"
        words = f"{status.get('reason', '')} {status.get('message', '')}".strip()
        return words or ("deleted" if self.is_deleting else self.phase)

    @property
    def is_ready(self) -> bool:
        """Whether all containers are ready."""
        return self._condition("Ready") is not None

    @property
    def unschedulable(self) -> str | None:
        """The scheduler's words when no node fits, or nothing."""
        scheduled = self._conditions.get("PodScheduled")
        if scheduled is None or scheduled["status"] != "False":
            return None
        return str(scheduled.get("message") or scheduled.get("reason") or "no node fits")

    @property
    def out_of_memory_ms(self) -> int:
        """When a container of it last ended because the kernel had killed it for memory; 0: none.

        To the second. The reason alone may be about a process that was killed earlier, and the
        container not.
        """
        ends = [
            container.get(when, {}).get("terminated") or {}
            for container in self.obj.get("status", {}).get("containerStatuses") or ()
            for when in ("state", "lastState")
        ]
        times = [
            parse_rfc3339(end["finishedAt"])
            for end in ends
            if (end.get("reason"), end.get("exitCode")) == _OUT_OF_MEMORY and end.get("finishedAt")
        ]
        return max(times, default=0)

    @property
    def bad_exit(self) -> Exit | None:
        """The first of its containers that did not end well; nothing if all are well."""
        status = self.obj.get("status", {})
        containers = list(status.get("containerStatuses") or ())
        if self.phase == "Failed":  # only then none of them is started again
            containers += status.get("initContainerStatuses") or ()
        ends = (container.get("state", {}).get("terminated") for container in containers)
        return min((_exit(end) for end in ends if end and end.get("exitCode")), default=None)

    @property
    def last_words(self) -> tuple[str, str]:
        """Reason and message of the container that has ended, of a pod with one."""
        for container in self.obj.get("status", {}).get("containerStatuses") or ():
            ended = container.get("state", {}).get("terminated") or {}
            return str(ended.get("reason", "")), str(ended.get("message", ""))
        return "", ""

    @property
    def waiting(self) -> tuple[str, str] | None:
        """Reason and message of the first container that waits for something, or nothing."""
        status = self.obj.get("status", {})
        containers = [
            *(status.get("initContainerStatuses") or ()),
            *(status.get("containerStatuses") or ()),
        ]
        for container in containers:
            waiting = container.get("state", {}).get("waiting")
            if waiting and waiting.get("reason"):
                return str(waiting["reason"]), str(waiting.get("message", ""))
        return None


def _exit(end: Mapping[str, Any]) -> Exit:
    return Exit(
        parse_rfc3339(end["finishedAt"]) if end.get("finishedAt") else 0,
        int(end["exitCode"]),
        str(end.get("message", "")),
        (end.get("reason"), end["exitCode"]) == _OUT_OF_MEMORY,
    )


_V = TypeVar("_V", bound=View)


def views(
    make: type[_V], objects: Iterable[Object], doomed: frozenset[str] = frozenset()
) -> tuple[_V, ...]:
    """Views of objects, ordered by name; ``doomed``: UIDs whose deletion was asked for."""
    ordered = sorted(objects, key=lambda obj: str(obj["metadata"]["name"]))
    return tuple(make(obj, doomed=obj["metadata"]["uid"] in doomed) for obj in ordered)


def deletion_ends_ms_of(obj: Object) -> int:
    """When the grace period of an object is over; 0: nobody has deleted it."""
    told = obj["metadata"].get("deletionTimestamp")
    return parse_rfc3339(told) if told else 0


def deletion_asked_ms_of(obj: Object) -> int:
    """When somebody deleted an object, to the second; 0: nobody has."""
    grace_s = int(obj["metadata"].get("deletionGracePeriodSeconds") or 0)
    ends_ms = deletion_ends_ms_of(obj)
    return ends_ms - grace_s * 1000 if ends_ms else 0


def owner_uid_of(obj: Object) -> str:
    """UID of the controller of an object; empty: none."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")
