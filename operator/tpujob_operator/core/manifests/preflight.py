"""The Job that asks the TPU compiler, on a CPU, whether a job fits its slices."""

from __future__ import annotations

from typing import Any

from tpujob_agent.preflight import TERMINATION_LOG
from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.core.manifests import environment, names, pods, worker
from tpujob_operator.core.manifests.options import ManifestOptions
from tpujob_operator.core.manifests.shape import digest

#: A large step takes minutes to compile, and so does each change that is tried.
DEADLINE_S = 3600
_TRIES = 3
#: Pods after the first one, where one was killed or has crashed.
_RETRIES = 2
#: The trainer's own exit codes for what will not change.
_FINAL = (1, 3)
#: Whoever wants to read the log may do so for a day.
_KEPT_S = 86_400
_RESOURCES = {"requests": {"cpu": "500m", "memory": "3Gi"}}


def build(job: TPUTrainingJob, options: ManifestOptions) -> dict[str, Any]:
    """The Job; it is applied once, and made anew for another digest."""
    name = job.metadata.name
    labels = names.labels(name, role=names.ROLE_PREFLIGHT)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            **names.metadata(job, names.preflight_job(name)),
            "labels": labels,
            "annotations": {names.CHECKED_ANNOTATION: checked(job)},
        },
        "spec": {
            "backoffLimit": _RETRIES,
            "activeDeadlineSeconds": DEADLINE_S,
            "ttlSecondsAfterFinished": _KEPT_S,
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {"operator": "In", "values": list(_FINAL)},
                    },
                    {
                        "action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    },
                ]
            },
            "template": {"metadata": {"labels": dict(labels)}, "spec": _pod(job, options)},
        },
    }


def checked(job: TPUTrainingJob) -> str:
    """Digest of what of the spec the answer depends on."""
    spec = job.spec
    assert spec.trainer is not None
    given = spec.trainer.to_json()
    parts = [given.get(name) for name in ("image", "config", "env")]
    return digest([spec.accelerator, spec.topology, spec.slices, *parts])


def _pod(job: TPUTrainingJob, options: ManifestOptions) -> dict[str, Any]:
    """A worker's pod without chips, volumes and agent."""
    spec: dict[str, Any] = worker.bundled_template(job, options)["spec"]
    spec.pop("volumes", None)
    [container] = spec["containers"]
    container.pop("volumeMounts", None)
    return {
        **spec,
        "containers": [_container(job, container)],
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        # There is no libtpu for others.
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
    }


def _container(job: TPUTrainingJob, trainer: dict[str, Any]) -> dict[str, Any]:
    assert job.spec.trainer is not None
    config = environment.trainer_config(job.spec.trainer)
    return {
        **trainer,
        "name": "check",
        "command": [*trainer["command"], "check", *_arguments(job, config["name"])],
        "env": pods.merged_by_name([config], trainer.get("env") or []),
        "resources": _RESOURCES,
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _arguments(job: TPUTrainingJob, variable: str) -> list[str]:
    spec = job.spec
    assert spec.checkpoint is not None
    told = {"accelerator": spec.accelerator.value, "topology": spec.topology, "slices": spec.slices}
    told |= {"config": f"env:{variable}", "tries": _TRIES, "verdict": TERMINATION_LOG}
    # As the workers' environment overrides the configuration.
    checkpoint = {
        "directory": environment.literal(spec.checkpoint.directory),
        "interval": environment.interval(spec.checkpoint),
        "keep": spec.checkpoint.keep,
    }
    settings = [f"--set=checkpoint.{name}={value}" for name, value in checkpoint.items()]
    return [*(f"--{name}={value}" for name, value in told.items()), *settings]
