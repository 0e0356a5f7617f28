"""Jobs to make faults under, as their users would write them."""

from __future__ import annotations

from typing import Any

from demo.clusters import Target
from faults.scene import TRAINER
from faults.training import TRAINING
from tpujob_operator.core.kinds import TPU_TRAINING_JOB

Object = dict[str, Any]

ROOT_FOLDER = "/shared"
#: A step takes 0.05 s, on a machine that may be busy.
HANG_S = 10
NO_LIMITS = dict.fromkeys(("userError", "process", "infrastructure", "noProgress"), -1)


def pod_template(
    target: Target, folder: str, *command: str, image: str = "", steps: int = 1_000_000
) -> Object:
    """Pod template of a program of one's own; by default in an image that has Python.

    Args:
        target: the cluster, with its images and the folder that all hosts share.
        folder: of this job, in that one.
        command: the program.
        image: instead of the default.
        steps: for ``faults.training``.
    """
    container = {
        "name": TRAINER,
        "image": image or target.operator_image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "env": [
            {"name": "FOLDER", "value": f"{ROOT_FOLDER}/{folder}"},
            {"name": "STEPS", "value": str(steps)},
        ],
        "volumeMounts": [{"name": "shared", "mountPath": ROOT_FOLDER}],
        # As images of training programs do, and as a hostPath folder asks for.
        "securityContext": {"runAsUser": 0},
    }
    volumes = [{"name": "shared", **target.volume}]
    return {"spec": {"containers": [container], "volumes": volumes}}


def manifest(namespace: str, name: str, template: Object | None = None, **spec: Any) -> Object:
    """A job of one slice of two hosts."""
    program = {"template": template} if template else {}
    shape = {"accelerator": "v5e", "topology": "2x4", "slices": 1}
    return {
        "apiVersion": TPU_TRAINING_JOB.api_version,
        "kind": TPU_TRAINING_JOB.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**shape, **program, **spec},
    }


def endless_job(target: Target, namespace: str, name: str) -> Object:
    """A job of two slices that trains under all faults until it is deleted."""
    template = pod_template(target, namespace, "python", "-c", TRAINING)
    template["spec"]["containers"][0]["resources"] = {"limits": {"memory": "256Mi"}}
    return manifest(
        namespace,
        name,
        template,
        slices=2,
        recovery={"budgets": NO_LIMITS},
        health={"hang": {"minSeconds": HANG_S}},
    )
