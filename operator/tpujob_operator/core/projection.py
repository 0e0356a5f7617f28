"""Makes views of what the API server returns; whatever else an object holds is dropped here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from tpujob_agent.protocol import CoordinatorConfig, Env
from tpujob_operator.api.base import parse_rfc3339
from tpujob_operator.core.kinds import JOB, JOB_SET, POD, Kind
from tpujob_operator.core.manifests import names
from tpujob_operator.core.ownership import controller_of
from tpujob_operator.core.views import Exit, JobSetView, JobView, PodView, View

#: The Job controller sets it as a label and as an annotation.
HOST_INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"
REPLICATED_JOB_LABEL: Final = "jobset.sigs.k8s.io/replicatedjob-name"

#: Reason and exit code of a container that was killed as a whole.
_OUT_OF_MEMORY = ("OOMKilled", 137)
_SUCCESSES = ("Complete", "SuccessCriteriaMet")
_ENDS = (*_SUCCESSES, "Failed", "FailureTarget")

Object = Mapping[str, Any]
_V = TypeVar("_V", bound=View)


def jobset_view(obj: Object) -> JobSetView:
    """What is kept of a JobSet."""
    replicated = obj["spec"].get("replicatedJobs") or ()
    annotations = obj["metadata"].get("annotations") or {}
    conditions = _true_conditions(obj)
    failed = conditions.get("Failed")
    return JobSetView(
        **_identity(obj),
        has_agents=any(item["name"] == names.COORDINATOR for item in replicated),
        key_id=str(annotations.get(names.KEY_ID_ANNOTATION, "")),
        avoided=_split(annotations.get(names.AVOIDED_ANNOTATION, "")),
        is_suspended=bool(obj["spec"].get("suspend")),
        is_completed="Completed" in conditions,
        shape=str(annotations.get(names.SHAPE_ANNOTATION, "")),
        budgets=_budgets(replicated),
        failure=None if failed is None else str(failed.get("message", "the JobSet failed")),
    )


def job_view(obj: Object) -> JobView:
    """What is kept of a Job."""
    meta, status = obj["metadata"], obj.get("status") or {}
    true, all_ = _true_conditions(obj), _conditions(obj)
    return JobView(
        **_identity(obj),
        checked=str((meta.get("annotations") or {}).get(names.CHECKED_ANNOTATION, "")),
        is_coordinator=_label(meta, REPLICATED_JOB_LABEL) == names.COORDINATOR,
        slice_index=_number(_label(meta, names.SLICE_INDEX_LABEL)),
        is_suspended=bool(obj["spec"].get("suspend")) or "Suspended" in true,
        is_resumed=all_.get("Suspended", {}).get("status") == "False",
        hosts=int(obj["spec"].get("parallelism", 1)),
        failed=int(status.get("failed") or 0),
        started=str(status.get("startTime") or ""),
        is_succeeded=any(kind in true for kind in _SUCCESSES),
        is_over=any(kind in true for kind in _ENDS),
        failure=str(true.get("Failed", {}).get("message", "")),
    )


def pod_view(obj: Object) -> PodView:
    """What is kept of a pod."""
    meta, status = obj["metadata"], obj.get("status") or {}
    true = _true_conditions(obj)
    phase = sys.intern(str(status.get("phase", "")))
    return PodView(
        **_identity(obj),
        place=(
            _number(_label(meta, names.SLICE_INDEX_LABEL)),
            _number(_label(meta, HOST_INDEX_LABEL)),
        ),
        created=str(meta.get("creationTimestamp", "")),
        node=sys.intern(str(obj["spec"].get("nodeName", ""))),
        deletion_asked_ms=_deletion_asked_ms(meta),
        disruption=sys.intern(str(true.get("DisruptionTarget", {}).get("reason", ""))),
        phase=phase,
        words=_words(status, true.get("DisruptionTarget")),
        is_ready="Ready" in true,
        unschedulable=_unschedulable(_conditions(obj).get("PodScheduled")),
        out_of_memory_ms=_out_of_memory_ms(status),
        bad_exit=_bad_exit(status, phase),
        last_words=_last_words(status),
        waiting=_waiting(status),
    )


#: How the kinds of children are seen.
VIEW_OF: Final[Mapping[Kind, Callable[[Object], View]]] = {
    JOB_SET: jobset_view,
    JOB: job_view,
    POD: pod_view,
}


def views(make: Callable[[Object], _V], objects: Iterable[Object]) -> tuple[_V, ...]:
    """Views of objects, ordered by name."""
    return tuple(sorted(map(make, objects), key=lambda view: view.name))


def _identity(obj: Object) -> dict[str, Any]:
    meta = obj["metadata"]
    return {
        "namespace": sys.intern(str(meta["namespace"])),
        "name": str(meta["name"]),
        "uid": str(meta["uid"]),
        "version": int(meta.get("resourceVersion") or 0),
        "owner_uid": str((controller_of(meta) or {}).get("uid", "")),
        "attempt": _number(_label(meta, names.ATTEMPT_LABEL)),
        "role": sys.intern(_label(meta, names.ROLE_LABEL)),
        "deletion_ends_ms": _deletion_ends_ms(meta),
    }


def _label(meta: Mapping[str, Any], name: str) -> str:
    return str((meta.get("labels") or {}).get(name, ""))


def _number(label: str) -> int:
    return int(label) if label.isdecimal() else 0


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _deletion_ends_ms(meta: Mapping[str, Any]) -> int:
    told = meta.get("deletionTimestamp")
    return parse_rfc3339(told) if told else 0


def _deletion_asked_ms(meta: Mapping[str, Any]) -> int:
    grace_s = int(meta.get("deletionGracePeriodSeconds") or 0)
    ends_ms = _deletion_ends_ms(meta)
    return ends_ms - grace_s * 1000 if ends_ms else 0


def _conditions(obj: Object) -> dict[str, Mapping[str, Any]]:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return {item["type"]: item for item in conditions}


def _true_conditions(obj: Object) -> dict[str, Mapping[str, Any]]:
    return {kind: item for kind, item in _conditions(obj).items() if item["status"] == "True"}


def _budgets(replicated: Iterable[Object]) -> Mapping[str, int]:
    """The limits that a coordinator is started with; empty: they cannot be read."""
    found = next(
        (
            variable["value"]
            for job in replicated
            for container in job["template"]["spec"]["template"]["spec"]["containers"]
            for variable in container.get("env", ())
            if variable["name"] == Env.COORDINATOR_CONFIG
        ),
        "",
    )
    try:
        return CoordinatorConfig.from_json(found).budgets if found else {}
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def _words(status: Object, disruption: Mapping[str, Any] | None) -> str:
    if disruption is not None:
        return f"{disruption.get('reason', '')}: {disruption.get('message', '')}"
    return f"{status.get('reason', '')} {status.get('message', '')}".strip()


def _unschedulable(scheduled: Mapping[str, Any] | None) -> str | None:
    if scheduled is None or scheduled["status"] != "False":
        return None
    return sys.intern(str(scheduled.get("message") or scheduled.get("reason") or "no node fits"))


def _containers(status: Object) -> list[Mapping[str, Any]]:
    return list(status.get("containerStatuses") or ())


def _init_containers(status: Object) -> list[Mapping[str, Any]]:
    return list(status.get("initContainerStatuses") or ())


def _out_of_memory_ms(status: Object) -> int:
    """When a container of a pod was killed for memory.

    The reason alone may be about a process that was killed earlier, and the container not.
    """
    ends = [
        container.get(when, {}).get("terminated") or {}
        for container in _containers(status)
        for when in ("state", "lastState")
    ]
    times = [
        parse_rfc3339(end["finishedAt"])
        for end in ends
        if (end.get("reason"), end.get("exitCode")) == _OUT_OF_MEMORY and end.get("finishedAt")
    ]
    return max(times, default=0)


def _bad_exit(status: Object, phase: str) -> Exit | None:
    containers = _containers(status)
    if phase == "Failed":  # only then none of them is started again
        containers += _init_containers(status)
    ends = (container.get("state", {}).get("terminated") for container in containers)
    return min((_exit(end) for end in ends if end and end.get("exitCode")), default=None)


def _exit(end: Mapping[str, Any]) -> Exit:
    return Exit(
        parse_rfc3339(end["finishedAt"]) if end.get("finishedAt") else 0,
        int(end["exitCode"]),
        str(end.get("message", "")),
        (end.get("reason"), end["exitCode"]) == _OUT_OF_MEMORY,
    )


def _last_words(status: Object) -> tuple[str, str]:
    for container in _containers(status):
        ended = container.get("state", {}).get("terminated") or {}
        return str(ended.get("reason", "")), str(ended.get("message", ""))
    return "", ""


def _waiting(status: Object) -> tuple[str, str] | None:
    for container in (*_init_containers(status), *_containers(status)):
        waiting = container.get("state", {}).get("waiting")
        if waiting and waiting.get("reason"):
            return str(waiting["reason"]), str(waiting.get("message", ""))
    return None
