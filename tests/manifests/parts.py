"""Parts of the objects that are built for a job."""

from __future__ import annotations

from typing import Any

from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.core.manifests import build
from tpujob_operator.core.manifests.options import ManifestOptions

Object = dict[str, Any]

CONTAINER: Object = {
    "name": "main",
    "image": "mine",
    "command": ["python", "t.py"],
    "args": ["-v"],
}


def jobset_of(job: TPUTrainingJob, options: ManifestOptions, **more: Any) -> Object:
    """The JobSet of a job's third attempt."""
    return build(job, attempt=3, options=options, **more)[-1]


def pods_of(jobset: Object) -> dict[str, Object]:
    """Pod templates by the name of their replicated job."""
    return {
        item["name"]: item["template"]["spec"]["template"]
        for item in jobset["spec"]["replicatedJobs"]
    }


def worker_of(job: TPUTrainingJob, options: ManifestOptions) -> Object:
    """The worker pods' spec."""
    spec: Object = pods_of(jobset_of(job, options))["slice"]["spec"]
    return spec


def environment_of(container: Object) -> dict[str, Any]:
    """A container's variables by name."""
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container["env"]}


def trainer_of(job: TPUTrainingJob, options: ManifestOptions) -> Object:
    """The container that trains."""
    trainer: Object = worker_of(job, options)["containers"][0]
    return trainer
