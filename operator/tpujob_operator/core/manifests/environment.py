"""Environment of the trainer's container: the agent's, the TPU's and the trainer's own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tpujob_agent.protocol import JAX_PORT_BASE, Env
from tpujob_operator.api.checkpoints import Checkpoint, IntervalPolicy
from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.api.podtemplate import AGENT_DIR, SNAPSHOT_DIR
from tpujob_operator.api.spec import Trainer
from tpujob_operator.core.manifests import names, pods, secret, service
from tpujob_operator.core.manifests.options import ManifestOptions

#: Modules that are worth importing once per pod; the agent goes on without those that are missing.
_PRELOAD = ("jax", "flax", "optax", "orbax.checkpoint")
#: Its training loop brings JAX and Optax; Orbax it would import at its first save or restore.
_PRELOAD_BUNDLED = ("jax", "tpujob_trainer.train", "tpujob_checkpoint.orbax_files")
_MEGASCALE_PORT = 8080
#: Of libtpu's own connections among the hosts of a slice.
_TPU_PROCESS_PORT = 8476


def variables(
    job: TPUTrainingJob, attempt: int, options: ManifestOptions, *, grace_s: int
) -> list[dict[str, Any]]:
    """All variables, in an order in which later ones may refer to earlier ones."""
    return [
        *_identity(job, attempt),
        *_access(job, options),
        *_place(),
        *_folders(),
        pods.variable(Env.GRACE_S, grace_s),
        *_trainer(job, options),
        *_tpu(job, attempt),
        *_multislice(job, attempt),
    ]


def without_agent(job: TPUTrainingJob, attempt: int) -> list[dict[str, Any]]:
    """Variables of a program that no agent runs: what the agent would tell it is here, too."""
    return [
        *_identity(job, attempt),
        *_place(),
        *_checkpoint(job),
        *_tpu(job, attempt),
        *_multislice(job, attempt),
        *_jax(job, attempt),
    ]


def _identity(job: TPUTrainingJob, attempt: int) -> Iterator[dict[str, Any]]:
    yield pods.variable(Env.JOB, job.metadata.name)
    yield pods.variable(Env.NAMESPACE, job.metadata.namespace)
    yield pods.variable(Env.UID, job.metadata.uid)
    yield pods.variable(Env.ATTEMPT, attempt)


def _access(job: TPUTrainingJob, options: ManifestOptions) -> Iterator[dict[str, Any]]:
    yield pods.variable(Env.COORDINATOR, service.address(job))
    yield secret.token_variable(job, options, Env.TOKEN)


def _place() -> Iterator[dict[str, Any]]:
    yield pods.field_variable(Env.SLICE, f"metadata.labels['{names.SLICE_INDEX_LABEL}']")
    yield pods.field_variable(Env.HOST, f"metadata.annotations['{names.HOST_INDEX_ANNOTATION}']")
    yield pods.field_variable(Env.POD_NAME, "metadata.name")
    yield pods.field_variable(Env.POD_IP, "status.podIP")
    yield pods.field_variable(Env.NODE_NAME, "spec.nodeName")


def _folders() -> Iterator[dict[str, Any]]:
    yield pods.variable(Env.RUN_DIR, f"{AGENT_DIR}/run")
    yield pods.variable(Env.CACHE_DIR, f"{AGENT_DIR}/cache")
    yield pods.variable(Env.SNAPSHOT_DIR, SNAPSHOT_DIR)


def _trainer(job: TPUTrainingJob, options: ManifestOptions) -> Iterator[dict[str, Any]]:
    spec = job.spec
    yield pods.variable(Env.PRELOAD, ",".join(_preload(job)))
    yield pods.variable(Env.HANG_MIN_S, spec.health.hang.min_seconds)
    yield pods.variable(Env.HANG_FACTOR, spec.health.hang.factor)
    if spec.health.progress_pattern:
        yield pods.variable(Env.PROGRESS_PATTERN, literal(spec.health.progress_pattern))
    yield from _checkpoint(job)
    if spec.trainer:
        yield trainer_config(spec.trainer)
        if keeps_programs(spec.trainer):
            yield secret.programs_variable(job, options, Env.PROGRAMS_KEY, is_needed=False)


def keeps_programs(trainer: Trainer) -> bool:
    """Whether the bundled trainer leaves compiled programs beside its checkpoints."""
    checkpoint = trainer.config.get("checkpoint")
    return isinstance(checkpoint, Mapping) and checkpoint.get("keepPrograms") is True


def trainer_config(trainer: Trainer) -> dict[str, Any]:
    """The variable that holds the bundled trainer's configuration."""
    config = json.dumps(trainer.config, sort_keys=True, separators=(",", ":"))
    return pods.variable(Env.TRAINER_CONFIG, literal(config))


def _checkpoint(job: TPUTrainingJob) -> Iterator[dict[str, Any]]:
    checkpoint = job.spec.checkpoint
    if checkpoint:
        yield pods.variable(Env.CHECKPOINT_DIR, literal(checkpoint.directory))
        yield pods.variable(Env.CHECKPOINT_INTERVAL, interval(checkpoint))
        yield pods.variable(Env.CHECKPOINT_KEEP, checkpoint.keep)


def _tpu(job: TPUTrainingJob, attempt: int) -> Iterator[dict[str, Any]]:
    """What GKE injects, set here so that a job runs the same where nothing injects."""
    shape = job.shape
    here = f"$({Env.SLICE})"
    hosts = [
        names.worker_host(job.metadata.name, attempt, here, host) for host in range(shape.hosts)
    ]
    yield pods.field_variable(
        "TPU_WORKER_ID", f"metadata.annotations['{names.HOST_INDEX_ANNOTATION}']"
    )
    yield pods.variable("TPU_WORKER_HOSTNAMES", ",".join(hosts))
    if shape.generation.has_process_addresses:
        addresses = [f"{host}:{_TPU_PROCESS_PORT}" for host in hosts]
        yield pods.variable("TPU_PROCESS_ADDRESSES", ",".join(addresses))
        yield pods.variable("TPU_PROCESS_PORT", _TPU_PROCESS_PORT)
    yield pods.variable("TPU_TOPOLOGY", shape.topology)
    yield pods.variable("TPU_ACCELERATOR_TYPE", shape.accelerator_type)


def _multislice(job: TPUTrainingJob, attempt: int) -> Iterator[dict[str, Any]]:
    if job.spec.slices == 1:
        return
    leader = names.worker_host(job.metadata.name, attempt, 0, 0)
    yield pods.variable("MEGASCALE_NUM_SLICES", job.spec.slices)
    yield pods.variable("MEGASCALE_SLICE_ID", f"$({Env.SLICE})")
    yield pods.variable("MEGASCALE_COORDINATOR_ADDRESS", leader)
    yield pods.variable("MEGASCALE_PORT", _MEGASCALE_PORT)


def _jax(job: TPUTrainingJob, attempt: int) -> Iterator[dict[str, Any]]:
    """Where the processes of an attempt find each other.

    Number a process by slice and host where there are several slices: JAX does so by itself on
    TPUs, and Kubernetes cannot add.
    """
    leader = names.worker_host(job.metadata.name, attempt, 0, 0)
    yield pods.variable(Env.JAX_COORDINATOR_ADDRESS, f"{leader}:{JAX_PORT_BASE}")
    yield pods.variable(Env.JAX_NUM_PROCESSES, job.spec.slices * job.shape.hosts)
    if job.spec.slices == 1:
        yield pods.variable(Env.JAX_PROCESS_ID, f"$({Env.HOST})")


def interval(checkpoint: Checkpoint) -> str:
    """The checkpoint interval as the trainer reads it: ``auto``, ``steps:N`` or ``seconds:S``."""
    chosen = checkpoint.interval
    if chosen.policy is IntervalPolicy.STEPS:
        return f"steps:{chosen.steps}"
    if chosen.policy is IntervalPolicy.SECONDS:
        return f"seconds:{chosen.seconds}"
    return "auto"


def _preload(job: TPUTrainingJob) -> tuple[str, ...]:
    if job.spec.recovery.preload is not None:
        return tuple(job.spec.recovery.preload)
    return _PRELOAD_BUNDLED if job.spec.trainer else _PRELOAD


def literal(value: str) -> str:
    """Text that the kubelet takes as it is: ``$(NAME)`` would be replaced."""
    return value.replace("$(", "$$(")
