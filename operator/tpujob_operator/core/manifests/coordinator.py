"""The pod of a job's coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpujob_agent.protocol import (
    AGENT_PORT,
    HEALTH_PATH,
    HTTP_PORT,
    METRICS_PATH,
    CoordinatorConfig,
    Env,
)
from tpujob_operator.api.checkpoints import IntervalPolicy
from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.core.manifests import names, pods, secret
from tpujob_operator.core.manifests.batch import shares_batch
from tpujob_operator.core.manifests.options import ManifestOptions

#: A suspended job's workers save before they go, which it has to see through.
_GRACE_S = 35


def pod_template(
    job: TPUTrainingJob,
    attempt: int,
    options: ManifestOptions,
    budgets_used: Mapping[str, int],
) -> dict[str, Any]:
    """Template of the coordinator's pod."""
    labels = names.labels(job.metadata.name, attempt, names.ROLE_COORDINATOR)
    spec: dict[str, Any] = {
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": _GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": pods.leaving_lost_nodes(),
        "containers": [_container(job, config(job, attempt, budgets_used), options)],
    }
    if job.spec.priority_class_name:
        spec["priorityClassName"] = job.spec.priority_class_name
    return {"metadata": {"labels": labels, "annotations": {**pods.STAY, **_scrape()}}, "spec": spec}


def config(job: TPUTrainingJob, attempt: int, budgets_used: Mapping[str, int]) -> CoordinatorConfig:
    """What the coordinator is told."""
    elastic = job.spec.elastic
    return CoordinatorConfig(
        namespace=job.metadata.namespace,
        job=job.metadata.name,
        attempt=attempt,
        slices=job.spec.slices,
        spares=job.spec.spares,
        hosts_per_slice=job.shape.hosts,
        budgets=job.spec.recovery.budgets.to_json(),
        budgets_used=dict(budgets_used),
        smaller_worlds=smaller_worlds(job),
        replacement_timeout_ms=elastic.replacement_timeout_seconds * 1000 if elastic else 0,
        chips=job.spec.slices * job.shape.chips,
        plans_interval=plans_interval(job),
        straggler_ratio=job.spec.health.straggler.ratio,
        straggler_action=job.spec.health.straggler.action.value,
    )


def plans_interval(job: TPUTrainingJob) -> bool:
    """Whether checkpoint intervals are left to the coordinator."""
    checkpoint = job.spec.checkpoint
    return checkpoint is not None and checkpoint.interval.policy is IntervalPolicy.AUTO


def smaller_worlds(job: TPUTrainingJob) -> list[int]:
    """Numbers of slices below the wanted one that the job may train on, smallest first."""
    if not job.spec.elastic:
        return []
    sizes = range(job.spec.elastic.min_slices, job.spec.slices)
    # Where the wanted size itself would not do, devices are not what the slice's chips say.
    is_known = shares_batch(job, job.spec.slices)
    return [size for size in sizes if not is_known or shares_batch(job, size)]


def _container(
    job: TPUTrainingJob, told: CoordinatorConfig, options: ManifestOptions
) -> dict[str, Any]:
    return {
        "name": names.COORDINATOR,
        "image": options.operator_image,
        "imagePullPolicy": options.image_pull_policy,
        "command": ["python", "-m", "tpujob_coordinator"],
        "env": [
            pods.variable(Env.COORDINATOR_CONFIG, told.to_json()),
            secret.token_variable(job, options, Env.TOKEN),
        ],
        "ports": [_port("agents", AGENT_PORT), _port("http", HTTP_PORT)],
        "readinessProbe": _probe(period_s=2, failures=3),
        # An event loop that hangs for a minute is ended: agents reconnect and training goes on.
        "livenessProbe": _probe(period_s=10, failures=6),
        "resources": {
            "requests": {"cpu": "50m", "memory": "64Mi"},
            "limits": {"memory": "1Gi"},
        },
        "securityContext": pods.hardened(),
    }


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def _probe(*, period_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": HEALTH_PATH, "port": "http"},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _scrape() -> dict[str, str]:
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(HTTP_PORT),
        "prometheus.io/path": METRICS_PATH,
    }
