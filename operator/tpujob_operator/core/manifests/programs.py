"""The Job that compiles a job's programs, on a CPU, while the job waits for its chips."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from tpujob_agent.preflight import programs_of
from tpujob_agent.protocol import JAX_PORT_BASE, Env
from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.core.manifests import environment, names, pods, preflight, secret
from tpujob_operator.core.manifests.options import ManifestOptions

#: Each is a container of one pod, and takes about 1 GiB; whoever trains on CPUs has few of them.
_MOST_PROCESSES_ON_CPUS = 16


def build(job: TPUTrainingJob, options: ManifestOptions) -> dict[str, Any] | None:
    """The Job; nothing where no start would find what it makes, or one pod cannot make it."""
    spec = job.spec
    assert spec.trainer is not None
    assert spec.checkpoint is not None
    if runs_on_cpus(job) and _processes(job) > _MOST_PROCESSES_ON_CPUS:
        return None
    if not environment.keeps_programs(spec.trainer):
        return None
    storage = _storage(job, spec.checkpoint.directory)
    if storage is None:
        return None
    pod = preflight.on_cpu(job, options)
    [trainer] = pod["containers"]
    out = environment.literal(programs_of(spec.checkpoint.directory))
    key = secret.programs_variable(job, options, Env.PROGRAMS_KEY, is_needed=True)
    trainer = {**trainer, **storage.get("container", {}), "env": [key, *trainer["env"]]}
    make = _for_cpus if runs_on_cpus(job) else _for_chips
    pod |= {**storage.get("pod", {}), "containers": make(job, trainer, f"--out={out}")}
    return preflight.one_off(job, names.programs_job(job.metadata.name), names.ROLE_PROGRAMS, pod)


def runs_on_cpus(job: TPUTrainingJob) -> bool:
    """Whether its trainers take CPUs in the place of chips, as tests and the demo do."""
    given = job.spec.trainer.to_json().get("env") if job.spec.trainer else None
    return any((one["name"], one.get("value")) == ("JAX_PLATFORMS", "cpu") for one in given or ())


def _processes(job: TPUTrainingJob) -> int:
    return job.spec.slices * job.shape.hosts


def _storage(job: TPUTrainingJob, directory: str) -> dict[str, dict[str, Any]] | None:
    """Fields of container and pod that bring the directory; nothing if it is not to be had.

    What several hosts mount may be mounted once more. A volume of a single host may be one that
    a second pod keeps it from.
    """
    assert job.spec.trainer is not None
    if "://" in directory:
        return {}
    if _processes(job) == 1:
        return None
    given = job.spec.trainer.to_json()
    mounts = [
        mount
        for mount in given.get("volumeMounts") or ()
        if PurePosixPath(directory).is_relative_to(mount["mountPath"])
    ]
    if not mounts:
        return None
    mount = max(mounts, key=lambda mount: len(PurePosixPath(mount["mountPath"]).parts))
    volumes = [one for one in given.get("volumes") or () if one["name"] == mount["name"]]
    return {"container": {"volumeMounts": [mount]}, "pod": {"volumes": volumes}}


def _for_chips(job: TPUTrainingJob, trainer: dict[str, Any], out: str) -> list[dict[str, Any]]:
    """One process: the programs are every process's."""
    arguments = [*preflight.slices_of(job), *preflight.configured(job), out]
    return [
        {
            **trainer,
            "name": "compile",
            "command": [*trainer["command"], "compile", *arguments],
            "resources": preflight.RESOURCES,
        }
    ]


def _for_cpus(job: TPUTrainingJob, trainer: dict[str, Any], out: str) -> list[dict[str, Any]]:
    """A process for each of the job's: a program for CPUs is of one process of its world."""
    count = _processes(job)
    world = [
        pods.variable(Env.NUM_SLICES, job.spec.slices),
        pods.variable(Env.JAX_COORDINATOR_ADDRESS, f"localhost:{JAX_PORT_BASE}"),
        pods.variable(Env.JAX_NUM_PROCESSES, count),
    ]
    return [
        {
            **trainer,
            "name": f"compile-{process}",
            "command": [*trainer["command"], "compile", *preflight.configured(job), out],
            "env": [*world, pods.variable(Env.JAX_PROCESS_ID, process), *trainer["env"]],
            "resources": trainer.get("resources") or preflight.RESOURCES,
        }
        for process in range(count)
    ]
