"""The Job that compiles ahead: the trainer's container on a CPU, with the checkpoints' storage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.golden import assert_reviewed
from tests.manifests.parts import environment_of
from tests.manifests.test_manifests import KUBERNETES
from tpujob_agent.protocol import Env
from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.core.manifests import objects, programs, secret
from tpujob_operator.core.manifests.options import ManifestOptions
from tpujob_trainer import config as configs

GOLDEN = Path(__file__).parent / "golden" / "programs.yaml"
MakeJob = Callable[..., TPUTrainingJob]
CLAIM = {"name": "all", "persistentVolumeClaim": {"claimName": "all"}}
OTHER = {"name": "other", "persistentVolumeClaim": {"claimName": "other"}}


@pytest.fixture
def example(example: MakeJob) -> MakeJob:
    """Jobs of examples/ that have asked for compiled programs beside their checkpoints."""
    return lambda name, **changes: _keeping(example(name, **changes), True)


def _keeping(job: TPUTrainingJob, asked: object) -> TPUTrainingJob:
    """The job with this value of ``keepPrograms``."""
    assert job.spec.trainer
    config = dict(job.spec.trainer.config or {})
    config["checkpoint"] = {**config.get("checkpoint", {}), "keepPrograms": asked}
    trainer = job.spec.trainer.model_copy(update={"config": config})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"trainer": trainer})})


def test_golden(example: MakeJob, options: ManifestOptions) -> None:
    """The Job is the one that was reviewed (UPDATE_GOLDEN=1 writes it)."""
    made = programs.build(example("llama3-8b", preflight="Compile"), options)
    text = yaml.safe_dump(made, sort_keys=False)
    assert_reviewed(GOLDEN, text)
    kubernetes_validate.validate(yaml.safe_load(text), KUBERNETES, strict=True)


def pod_of(job: TPUTrainingJob, options: ManifestOptions) -> dict[str, Any]:
    """The pod that compiles."""
    made = programs.build(job, options)
    assert made is not None
    kubernetes_validate.validate(made, KUBERNETES, strict=True)
    pod: dict[str, Any] = made["spec"]["template"]["spec"]
    return pod


def test_a_world_of_cpus_is_compiled_by_as_many_processes(
    example: MakeJob, options: ManifestOptions
) -> None:
    """They find each other in the pod, and write where the trainers will look."""
    job = example("demo")
    containers = pod_of(job, options)["containers"]
    assert [one["name"] for one in containers] == [f"compile-{i}" for i in range(4)]
    seen = [environment_of(one) for one in containers]
    assert [one["JAX_PROCESS_ID"] for one in seen] == ["0", "1", "2", "3"]
    assert {one["JAX_COORDINATOR_ADDRESS"] for one in seen} == {"localhost:20000"}
    assert {(one["JAX_NUM_PROCESSES"], one["TPUJOB_NUM_SLICES"]) for one in seen} == {("4", "2")}
    assert {one["JAX_PLATFORMS"] for one in seen} == {"cpu"}
    [out] = {one["command"][-1] for one in containers}
    assert "--accelerator" not in str(containers)
    looked_for = configs.CheckpointConfig("/shared/checkpoints", keep_programs=True).programs
    assert out == f"--out={looked_for}" == "--out=/shared/checkpoints/programs"


@pytest.mark.parametrize(
    ("directory", "mounts", "mounted"),
    [
        ("/a/checkpoints", {"/a": CLAIM, "/b": OTHER}, "/a"),
        ("/a", {"/a": CLAIM}, "/a"),
        ("/a/b/c", {"/a": OTHER, "/a/b": CLAIM}, "/a/b"),
        ("/ab/c", {"/a": OTHER}, None),
        ("/a", {}, None),
        ("s3://bucket/a", {"/a": OTHER}, ""),
    ],
)
def test_only_the_volume_of_the_checkpoints_is_mounted(
    directory: str,
    mounts: dict[str, Any],
    mounted: str | None,
    example: MakeJob,
    options: ManifestOptions,
) -> None:
    """Of a bucket none; and where they are on none, nothing is compiled."""
    trainer = {
        "config": {},
        "volumes": [*mounts.values()],
        "volumeMounts": [{"name": one["name"], "mountPath": at} for at, one in mounts.items()],
    }
    job = example("demo", trainer=trainer, checkpoint={"directory": directory})
    if mounted is None:
        assert programs.build(job, options) is None
        return
    pod = pod_of(job, options)
    [container] = pod["containers"]
    paths = [one["mountPath"] for one in container.get("volumeMounts", [])]
    assert paths == ([mounted] if mounted else [])
    assert pod.get("volumes", []) == ([CLAIM] if mounted else [])


def test_the_volume_of_a_single_host_is_left_to_it(
    example: MakeJob, options: ManifestOptions
) -> None:
    """Its claim may be for one node at a time: this pod would keep the worker out."""
    assert programs.build(example("demo", topology="2x2", slices=1), options) is None
    bucket = {"directory": "gs://bucket/a"}
    alone = example("demo", topology="2x2", slices=1, checkpoint=bucket)
    assert len(pod_of(alone, options)["containers"]) == 1


def test_many_processes_on_cpus_are_left_to_the_job(
    example: MakeJob, options: ManifestOptions
) -> None:
    """One pod has one container for each process: the largest job would have a million of them."""
    bucket = {"directory": "gs://bucket/a"}
    assert len(pod_of(example("demo", slices=8, checkpoint=bucket), options)["containers"]) == 16
    assert programs.build(example("demo", slices=9, checkpoint=bucket), options) is None
    largest = {"accelerator": "v5p", "topology": "16x20x28", "slices": 7, "checkpoint": bucket}
    assert programs.build(example("demo", **largest), options) is None


def test_memory_is_limited(example: MakeJob, options: ManifestOptions) -> None:
    """The image is the user's, and the node is shared."""
    for container in pod_of(example("demo"), options)["containers"]:
        assert container["resources"]["limits"]["memory"]


def _key(container: dict[str, Any]) -> dict[str, Any] | None:
    """Where the container takes the key of the job's programs from."""
    found = [one for one in container["env"] if one["name"] == Env.PROGRAMS_KEY]
    return found[0]["valueFrom"]["secretKeyRef"] if found else None


def test_workers_and_compiler_have_one_key_of_the_job(
    example: MakeJob, options: ManifestOptions
) -> None:
    """What one of them writes, the others load; a Secret made by an older operator lacks it."""
    job = example("demo")
    [made, _, jobset] = objects.build(job, attempt=1, options=options)
    worker = next(one for one in _containers(jobset) if one["name"] == "trainer")
    compilers = pod_of(job, options)["containers"]
    reference = {"name": made["metadata"]["name"], "key": secret.PROGRAMS_KEY}
    assert [_key(one) for one in compilers] == [reference] * 4
    assert _key(worker) == {**reference, "optional": True}
    assert secret.PROGRAMS_KEY in made["data"]


def test_key_of_programs_is_of_one_job_and_tells_nothing_of_its_token() -> None:
    """The user's program has it, and not the token; another job has another one."""
    one, other = (secret.programs_key("operator's key", uid) for uid in ("0a", "0b"))
    assert one != other
    assert secret.token("operator's key", "0a") not in {one, secret.token(one, "0a")}


def test_jobs_that_keep_no_programs_have_no_key(example: MakeJob, options: ManifestOptions) -> None:
    """Only what needs it has it."""
    *_, jobset = objects.build(_keeping(example("demo"), False), attempt=1, options=options)
    assert not [one for one in _containers(jobset) if _key({"env": [], **one})]


def _containers(jobset: dict[str, Any]) -> list[dict[str, Any]]:
    """All containers of all pods of an attempt."""
    return [
        container
        for group in jobset["spec"]["replicatedJobs"]
        for container in group["template"]["spec"]["template"]["spec"]["containers"]
    ]
