"""What both kinds of pods have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: User of the operator image.
UID = 65532
#: Container restarts of ``restartPolicy: OnFailure`` count against it: never let the Job give up.
BACKOFF_LIMIT = 2**31 - 1
#: The cluster autoscaler is to leave the pod where it is: a move costs the job a restart.
STAY = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
#: Kubernetes' default of 300 s would keep a lost host's pod that long.
_LOST_NODE_TOLERATION_S = 10


def leaving_lost_nodes() -> list[dict[str, Any]]:
    """Tolerations of a pod that is evicted from a node soon after it was lost."""
    soon = {"operator": "Exists", "effect": "NoExecute"}
    lost = {**soon, "tolerationSeconds": _LOST_NODE_TOLERATION_S}
    return [
        {"key": "node.kubernetes.io/not-ready", **lost},
        {"key": "node.kubernetes.io/unreachable", **lost},
    ]


def hardened() -> dict[str, Any]:
    """Security context of a container of ours: fits the restricted Pod Security Standard."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "runAsUser": UID,
        "runAsGroup": UID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def variable(name: str, value: object) -> dict[str, Any]:
    """An environment variable."""
    return {"name": name, "value": str(value)}


def field_variable(name: str, path: str) -> dict[str, Any]:
    """An environment variable that holds a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def merged_by_name(
    ours: Iterable[Mapping[str, Any]], theirs: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Both lists, ours first, so that theirs can refer to it; theirs wins where names are equal.

    Server-side apply refuses lists that name something twice.
    """
    given = [dict(item) for item in theirs]
    taken = {item["name"] for item in given}
    return [*(dict(item) for item in ours if item["name"] not in taken), *given]


def indexed_job(
    template: Mapping[str, Any],
    labels: Mapping[str, str],
    *,
    pods: int,
    backoff_limit: int = BACKOFF_LIMIT,
) -> dict[str, Any]:
    """Template of a Job with a fixed number of pods; by default they are never given up."""
    return {
        "metadata": {"labels": dict(labels)},
        "spec": {
            "completionMode": "Indexed",
            "completions": pods,
            "parallelism": pods,
            "backoffLimit": backoff_limit,
            "template": dict(template),
        },
    }
