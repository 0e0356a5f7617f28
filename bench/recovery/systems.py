"""The systems that are compared: what each makes of the same program, and how to find its pods."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.recovery import program
from localcluster import kubeflow
from localcluster.kubeapi import Api, Object
from tpujob_agent.protocol import Env

JOB = "bench"
SAVE_EVERY = 40
HANG_S = 10
_PROGRAM = Path(program.__file__).read_text()
_PRELOAD = ["jax", "tpujob_trainer.train", "tpujob_checkpoint.orbax_files"]
_PORT = 8476
_JOB_INDEX = "jobset.sigs.k8s.io/job-index"
_HOST_INDEX = "batch.kubernetes.io/job-completion-index"
_POOL = "cloud.google.com/gke-nodepool"
_NODES = {"cloud.google.com/gke-tpu-topology": "2x4"}
_CHIPS = {"limits": {"google.com/tpu": "4"}}
_TOLERATION = {"key": "google.com/tpu", "operator": "Exists"}


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """How large the job is; the cluster has two slices."""

    slices: int = 2
    spares: int = 0

    @property
    def hosts(self) -> int:
        """Hosts that train."""
        return self.slices * program.HOSTS_PER_SLICE


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """What all systems are given alike."""

    shape: Shape
    api: Api
    namespace: str
    image: str
    volume: Object
    folder: str  # of this run, on the volume

    @property
    def env(self) -> dict[str, str]:
        """Variables of the program."""
        return {
            "FOLDER": self.folder,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
            program.CONFIG: json.dumps(self._config()),
        }

    def _config(self) -> Object:
        return {
            "model": {"preset": "demo"},  # two cores compute for all hosts
            "mesh": {"slice": self.shape.slices, "fsdp": 4},
            "globalBatch": 8,
            "sequenceLength": 64,
            "steps": 1_000_000,
            "data": {"source": "stdlib", "directory": "/shared/data", "maxBytes": 200_000},
            "checkpoint": {
                "directory": f"{self.folder}/checkpoints",
                "interval": f"steps:{SAVE_EVERY}",
            },
        }

    def container(self, name: str, **env: str) -> Object:
        """The container that trains."""
        both = {**self.env, **env}
        return {
            "name": name,
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["python", "-c", _PROGRAM],
            "env": [{"name": key, "value": value} for key, value in both.items()],
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
        }

    @property
    def volumes(self) -> list[Object]:
        """The folder that all hosts share."""
        return [{"name": "shared", **self.volume}]


@dataclasses.dataclass(frozen=True, slots=True)
class System:
    """One way to run the program on the cluster."""

    title: str
    manifest: Callable[[Setting], Object]
    selector: str  # of the pods that train
    container: str
    is_ours: bool = False
    fresh_job_each: bool = False  # it survives one fault only

    def rank(self, pod: Any) -> int:
        """Process id of a pod."""
        labels = pod.metadata.labels
        return int(labels[_JOB_INDEX]) * program.HOSTS_PER_SLICE + int(labels[_HOST_INDEX])


def _ours(setting: Setting) -> Object:
    spec = {"containers": [setting.container("trainer")], "volumes": setting.volumes}
    no_limits = dict.fromkeys(("userError", "process", "infrastructure", "noProgress"), -1)
    return {
        "apiVersion": "tpujob.dev/v1alpha1",
        "kind": "TPUTrainingJob",
        "metadata": {"name": JOB, "namespace": setting.namespace},
        "spec": {
            "accelerator": "v5e",
            "topology": "2x4",
            "slices": setting.shape.slices,
            "spares": setting.shape.spares,
            "template": {"spec": spec},
            "recovery": {"budgets": no_limits, "preload": _PRELOAD},
            "health": {"hang": {"minSeconds": HANG_S}},
        },
    }


def _jobset(setting: Setting, *, grace_s: int, strategy: str, **env: str) -> Object:
    """As users write it: all pods anew after a failure, one slice for each node pool."""
    leader = f"{JOB}-slice-0-0.{JOB}:{_PORT}"
    world = {Env.JAX_COORDINATOR_ADDRESS: leader, Env.JAX_NUM_PROCESSES: str(setting.shape.hosts)}
    number = {Env.NUM_SLICES: str(setting.shape.slices)}
    container = setting.container("trainer", **world, **number, **env)
    label = {"fieldRef": {"fieldPath": f"metadata.labels['{_JOB_INDEX}']"}}
    container["env"].append({"name": "SLICE", "valueFrom": label})
    container["resources"] = _CHIPS
    pod = {
        "containers": [container],
        "volumes": setting.volumes,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_s,
        "nodeSelector": _NODES,
        "tolerations": [_TOLERATION],
    }
    job = {
        "parallelism": program.HOSTS_PER_SLICE,
        "completions": program.HOSTS_PER_SLICE,
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    exclusive = {"alpha.jobset.sigs.k8s.io/exclusive-topology": _POOL}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": JOB, "namespace": setting.namespace, "annotations": exclusive},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": 100, "restartStrategy": strategy},
            "replicatedJobs": [
                {"name": "slice", "replicas": setting.shape.slices, "template": {"spec": job}}
            ],
        },
    }


def _jobset_stock(setting: Setting) -> Object:
    return _jobset(setting, grace_s=30, strategy="Recreate", STOCK="1")


def _jobset_tuned(setting: Setting) -> Object:
    return _jobset(setting, grace_s=1, strategy="BlockingRecreate")


def _kubeflow(setting: Setting) -> Object:
    """Its stock runtime for JAX, which is given image, folder and chips and nothing else."""
    kind = "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes"
    runtime = copy.deepcopy(setting.api.get(f"{kind}/{kubeflow.RUNTIME}"))
    [replicated] = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    [node] = pod["containers"]
    ours = setting.container(node["name"], **{Env.NUM_SLICES: str(setting.shape.slices)})
    node |= {key: ours[key] for key in ("image", "imagePullPolicy", "volumeMounts")}
    pod |= {"volumes": setting.volumes, "nodeSelector": _NODES, "tolerations": [_TOLERATION]}
    runtime["metadata"] = {"name": JOB, "labels": runtime["metadata"]["labels"]}
    runtime.pop("status", None)
    setting.api.apply(runtime)
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": JOB, "namespace": setting.namespace},
        "spec": {
            "runtimeRef": {"name": JOB},
            "trainer": {
                "numNodes": setting.shape.hosts,
                "command": ours["command"],
                "env": ours["env"],
                "resourcesPerNode": _CHIPS,
            },
        },
    }


_OF_JOBSET = f"jobset.sigs.k8s.io/jobset-name={JOB}"
SYSTEMS = {
    "ours": System(
        "this operator",
        _ours,
        f"tpujob.dev/job={JOB},tpujob.dev/role=worker",
        "trainer",
        is_ours=True,
    ),
    "jobset": System("JobSet, JAX as it ships", _jobset_stock, _OF_JOBSET, "trainer"),
    "jobset-tuned": System("JobSet, tuned", _jobset_tuned, _OF_JOBSET, "trainer"),
    "kubeflow": System("Kubeflow Trainer", _kubeflow, _OF_JOBSET, "node", fresh_job_each=True),
}
