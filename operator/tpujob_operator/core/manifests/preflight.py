"""The Job that asks the TPU compiler, on a CPU, whether a job fits its slices."""

from __future__ import annotations

from typing import Any

from tpujob_agent.preflight import TERMINATION_LOG
from tpujob_agent.protocol import Env
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
#: The image is the user's: without a limit its pod could take the memory of a node that others use.
RESOURCES = {"requests": {"cpu": "500m", "memory": "3Gi"}, "limits": {"memory": "32Gi"}}


def build(job: TPUTrainingJob, options: ManifestOptions) -> dict[str, Any]:
    """The Job; it is applied once, and made anew for another digest."""
    pod = on_cpu(job, options)
    [trainer] = pod["containers"]
    pod["containers"] = [_container(job, trainer)]
    return one_off(job, names.preflight_job(job.metadata.name), names.ROLE_PREFLIGHT, pod)


def one_off(job: TPUTrainingJob, name: str, role: str, pod: dict[str, Any]) -> dict[str, Any]:
    """A Job of one pod, made anew where it was killed, and not where the trainer has ended it."""
    labels = names.labels(job.metadata.name, role=role)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            **names.metadata(job, name),
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
            "template": {"metadata": {"labels": dict(labels)}, "spec": pod},
        },
    }


def checked(job: TPUTrainingJob) -> str:
    """Digest of what of the spec the answer depends on."""
    spec = job.spec
    assert spec.trainer is not None
    given = spec.trainer.to_json()
    parts = [given.get(name) for name in ("image", "config", "env")]
    return digest([spec.accelerator, spec.topology, spec.slices, *parts])


def on_cpu(job: TPUTrainingJob, options: ManifestOptions) -> dict[str, Any]:
    """A worker's pod without chips, volumes and agent, and with the trainer's configuration."""
    assert job.spec.trainer is not None
    spec: dict[str, Any] = worker.bundled_template(job, options)["spec"]
    spec.pop("volumes", None)
    [container] = spec["containers"]
    container.pop("volumeMounts", None)
    config = environment.trainer_config(job.spec.trainer)
    container["env"] = pods.merged_by_name([config], container.get("env") or [])
    return {
        **spec,
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        # There is no libtpu for others.
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
    }


def _container(job: TPUTrainingJob, trainer: dict[str, Any]) -> dict[str, Any]:
    arguments = [*slices_of(job), f"--tries={_TRIES}", f"--verdict={TERMINATION_LOG}"]
    return {
        **trainer,
        "name": "check",
        "command": [*trainer["command"], "check", *arguments, *configured(job)],
        "resources": RESOURCES,
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def slices_of(job: TPUTrainingJob) -> list[str]:
    """Arguments that say which slices to compile for."""
    spec = job.spec
    told = {"accelerator": spec.accelerator.value, "topology": spec.topology, "slices": spec.slices}
    return [f"--{name}={value}" for name, value in told.items()]


def configured(job: TPUTrainingJob) -> list[str]:
    """Arguments that say what to compile: as the workers' environment does."""
    checkpoint = job.spec.checkpoint
    assert checkpoint is not None
    told = {
        "directory": environment.literal(checkpoint.directory),
        "interval": environment.interval(checkpoint),
        "keep": checkpoint.keep,
    }
    settings = [f"--set=checkpoint.{name}={value}" for name, value in told.items()]
    return [f"--config=env:{Env.TRAINER_CONFIG}", *settings]
