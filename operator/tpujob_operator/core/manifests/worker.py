"""The pods of the hosts: the user's template with the agent in front of the trainer."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.api.podtemplate import (
    AGENT_CONTAINER,
    AGENT_DIR,
    AGENT_VOLUME,
    SNAPSHOT_DIR,
    SNAPSHOT_VOLUME,
    TRAINER_CONTAINER,
    find_trainer,
)
from tpujob_operator.api.spec import Trainer
from tpujob_operator.core.cost import provisioning_of
from tpujob_operator.core.manifests import environment, names, pods
from tpujob_operator.core.manifests.options import ManifestOptions
from tpujob_operator.core.suspects import Avoided
from tpujob_tpu.catalogue import HOSTNAME_LABEL, NODE_POOL_LABEL, RESOURCE
from tpujob_tpu.chips import CHIPS
from tpujob_tpu.provisioning import SPOT_GRACE_S, TAINTED, Provisioning

_AGENT_IN_IMAGE = "/opt/tpujob/agent.pyz"
_AGENT_IN_POD = f"{AGENT_DIR}/agent.pyz"
_GRACE_S = 30
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pod_template(
    job: TPUTrainingJob, attempt: int, options: ManifestOptions, avoided: Avoided
) -> dict[str, Any]:
    """Template of the worker pods; what the user's template says stays as it is."""
    template = _own_template(job) if job.spec.template else bundled_template(job, options)
    template["metadata"] = template.get("metadata") or {}  # null means the same as nothing
    _mark(template["metadata"], job, attempt)
    spec = template["spec"]
    trainer = find_trainer(spec["containers"])
    is_spot = provisioning_of(job) is Provisioning.SPOT
    grace_s = spec.setdefault(
        "terminationGracePeriodSeconds", SPOT_GRACE_S if is_spot else _GRACE_S
    )
    has_agent = not job.spec.recovery.recreates_pods
    if has_agent:
        _wrap(trainer, environment.variables(job, attempt, options, grace_s=grace_s))
    else:
        _leave_as_it_is(trainer, environment.without_agent(job, attempt))
    _add_chips(trainer, job.shape.chips_per_host)
    _place(spec, job)
    _require(spec, [*_bought(job), *_suspected(job, avoided)])
    if has_agent:
        spec["initContainers"] = [_agent_container(options), *(spec.get("initContainers") or [])]
        spec["volumes"] = [*(spec.get("volumes") or []), *_volumes(job)]
    # Without an agent the end of one program is the end of the attempt.
    spec["restartPolicy"] = "OnFailure" if has_agent else "Never"
    spec.setdefault("enableServiceLinks", False)
    if spec.get("hostNetwork"):  # Kubernetes' default would then not find Services
        spec.setdefault("dnsPolicy", "ClusterFirstWithHostNet")
    if job.spec.priority_class_name:
        spec["priorityClassName"] = job.spec.priority_class_name
    return template


def _own_template(job: TPUTrainingJob) -> dict[str, Any]:
    assert job.spec.template is not None
    return copy.deepcopy(job.spec.template.to_json())


def bundled_template(job: TPUTrainingJob, options: ManifestOptions) -> dict[str, Any]:
    """Template of a pod of the bundled trainer, without anything of an attempt."""
    assert job.spec.trainer is not None
    trainer = job.spec.trainer
    pod: dict[str, Any] = {"automountServiceAccountToken": False}
    given = trainer.to_json()
    for key in ("volumes", "serviceAccountName", "securityContext"):
        if key in given:
            pod[key] = given[key]
    pod["containers"] = [_bundled_container(trainer, given, options)]
    return {"spec": pod}


def _bundled_container(
    trainer: Trainer, given: Mapping[str, Any], options: ManifestOptions
) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": TRAINER_CONTAINER,
        "image": trainer.image or options.trainer_image,
        "imagePullPolicy": options.image_pull_policy,
        "command": ["python", "-m", "tpujob_trainer"],
        # Capabilities stay: TPU drivers lock memory beyond the usual limit.
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    for key in ("env", "resources", "volumeMounts"):
        if key in given:
            container[key] = given[key]
    return container


def _mark(metadata: dict[str, Any], job: TPUTrainingJob, attempt: int) -> None:
    ours = names.labels(job.metadata.name, attempt, names.ROLE_WORKER)
    metadata["labels"] = {**(metadata.get("labels") or {}), **ours}
    given = metadata.get("annotations") or {}
    metadata["annotations"] = {**pods.STAY, **given, **_topology_request(job)}


def _topology_request(job: TPUTrainingJob) -> dict[str, str]:
    """What tells Kueue that each slice is to have a domain of the flavor's topology.

    A flavor without such a topology admits no pods that ask for one, so the user has to say it.
    """
    if not job.spec.queue_topology_label:
        return {}
    return {
        names.SLICE_TOPOLOGY_ANNOTATION: job.spec.queue_topology_label,
        names.SLICE_SIZE_ANNOTATION: str(job.shape.hosts),
    }


def _leave_as_it_is(container: dict[str, Any], variables: Iterable[Mapping[str, Any]]) -> None:
    """Give the command its environment, and have the kubelet keep its last words."""
    container["env"] = pods.merged_by_name(variables, container.get("env") or [])
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")


def _wrap(container: dict[str, Any], variables: Iterable[Mapping[str, Any]]) -> None:
    """Put the agent in front of the command and give it its environment."""
    program = [*container["command"], *(container.get("args") or [])]
    container["command"] = ["python3", _AGENT_IN_POD, "--", *program]
    container.pop("args", None)
    container["env"] = pods.merged_by_name(variables, container.get("env") or [])
    mounts = [
        {"name": AGENT_VOLUME, "mountPath": AGENT_DIR},
        {"name": SNAPSHOT_VOLUME, "mountPath": SNAPSHOT_DIR},
    ]
    container["volumeMounts"] = [*(container.get("volumeMounts") or []), *mounts]


def _quantity(size: int) -> str:
    """Bytes as the API server writes them: it would change anything else, and we never agree."""
    mebibytes = size >> 20
    return f"{mebibytes}Mi" if mebibytes % 1024 else f"{mebibytes >> 10}Gi"


def _volumes(job: TPUTrainingJob) -> list[dict[str, Any]]:
    """The agent's directory, and memory for snapshots: as much as the host's chips have.

    A limit and no reservation: the trainer checks what the container has before it writes.
    """
    chip = CHIPS[job.shape.generation.name]
    size = job.shape.chips_per_host * chip.devices * chip.hbm_bytes
    memory = {"medium": "Memory", "sizeLimit": _quantity(size)}
    return [
        {"name": AGENT_VOLUME, "emptyDir": {}},
        {"name": SNAPSHOT_VOLUME, "emptyDir": memory},
    ]


def _add_chips(container: dict[str, Any], chips: int) -> None:
    resources = dict(container.get("resources") or {})
    for kind in ("requests", "limits"):
        resources[kind] = {**(resources.get(kind) or {}), RESOURCE: str(chips)}
    container["resources"] = resources


def _place(spec: dict[str, Any], job: TPUTrainingJob) -> None:
    """Onto nodes of such slices, and off lost nodes soon."""
    bought = job.spec.provisioning
    ours = job.shape.node_selector | (bought.node_selector if bought else {})
    spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **ours}
    given = list(spec.get("tolerations") or [])
    keys = {toleration.get("key") for toleration in given}
    tainted = [RESOURCE, *(label for label in TAINTED if label in ours)]
    tolerations = [*map(_tolerated, tainted), *pods.leaving_lost_nodes()]
    spec["tolerations"] = given + [t for t in tolerations if t["key"] not in keys]


def _bought(job: TPUTrainingJob) -> list[dict[str, Any]]:
    """Not onto nodes that cost something else: on-demand nodes have no label of their own."""
    bought = job.spec.provisioning
    if bought is None or bought.node_selector:
        return []
    return [{"key": label, "operator": "DoesNotExist"} for label in bought.unwanted_labels]


def _suspected(job: TPUTrainingJob, avoided: Avoided) -> list[dict[str, Any]]:
    """Not onto these nodes; a slice of several hosts not onto what is left of their pools."""
    pools = avoided.pools if job.shape.hosts > 1 else ()
    unwanted = {HOSTNAME_LABEL: avoided.nodes, NODE_POOL_LABEL: pools}
    return [
        {"key": label, "operator": "NotIn", "values": list(names)}
        for label, names in unwanted.items()
        if names
    ]


def _require(spec: dict[str, Any], rules: list[dict[str, Any]]) -> None:
    """Only onto nodes that all of these rules allow."""
    if not rules:
        return
    affinity = spec["affinity"] = {**(spec.get("affinity") or {})}
    of_nodes = affinity["nodeAffinity"] = {**(affinity.get("nodeAffinity") or {})}
    required = of_nodes.get(_REQUIRED) or {}
    # Terms are alternatives: each of them gets the rules.
    terms = required.get("nodeSelectorTerms") or [{}]
    of_nodes[_REQUIRED] = {
        "nodeSelectorTerms": [
            {**term, "matchExpressions": [*(term.get("matchExpressions") or []), *rules]}
            for term in terms
        ]
    }


def _tolerated(taint: str) -> dict[str, Any]:
    return {"key": taint, "operator": "Exists", "effect": "NoSchedule"}


def _agent_container(options: ManifestOptions) -> dict[str, Any]:
    return {
        "name": AGENT_CONTAINER,
        "image": options.operator_image,
        "imagePullPolicy": options.image_pull_policy,
        "command": ["cp", _AGENT_IN_IMAGE, _AGENT_IN_POD],
        "volumeMounts": [{"name": AGENT_VOLUME, "mountPath": AGENT_DIR}],
        "resources": {
            "requests": {"cpu": "10m", "memory": "16Mi"},
            "limits": {"memory": "64Mi"},
        },
        "securityContext": pods.hardened(),
    }
