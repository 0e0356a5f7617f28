"""The objects of an attempt: what is promised to agents, JobSet, GKE and the user's template."""

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.golden import assert_reviewed
from tests.manifests.parts import (
    CONTAINER,
    Object,
    environment_of,
    jobset_of,
    pods_of,
    trainer_of,
    worker_of,
)
from tpujob_agent.protocol import CoordinatorConfig, Env
from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.core.manifests import build, environment
from tpujob_operator.core.manifests.options import ManifestOptions
from tpujob_operator.core.manifests.shape import changed_fields, shape
from tpujob_operator.core.suspects import Avoided

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("demo", "own-program", "llama3-8b", "recreated-program")
KUBERNETES = "1.36.0"
MakeJob = Callable[..., TPUTrainingJob]


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str, example: MakeJob, options: ManifestOptions) -> None:
    """The objects of the examples are those that were reviewed (UPDATE_GOLDEN=1 writes them)."""
    made = yaml.safe_dump_all(build(example(name), attempt=1, options=options), sort_keys=False)
    path = GOLDEN / f"{name}.yaml"
    assert_reviewed(path, made)


def test_snapshots_get_memory_that_outlives_the_process(
    example: MakeJob, options: ManifestOptions
) -> None:
    """A volume in memory, bounded by what the host's chips hold, is where the trainer is told."""
    spec = worker_of(example("demo"), options)  # v5e: 4 chips of 15.75 GiB a host
    volume = next(v for v in spec["volumes"] if v["name"] == "tpujob-snapshots")
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": f"{4 * 15.75:.0f}Gi"}
    trainer = trainer_of(example("demo"), options)
    mounts = {mount["name"]: mount["mountPath"] for mount in trainer["volumeMounts"]}
    assert environment_of(trainer)[Env.SNAPSHOT_DIR] == mounts["tpujob-snapshots"]


@pytest.mark.parametrize("name", NAMES)
def test_objects_fit_kubernetes_schemas(
    name: str, example: MakeJob, options: ManifestOptions
) -> None:
    """Secret, Service and the Jobs of the JobSet have no field that Kubernetes does not know."""
    *support, jobset = build(example(name), attempt=1, options=options)
    jobs = [
        {"apiVersion": "batch/v1", "kind": "Job", **copy.deepcopy(item["template"])}
        for item in jobset["spec"]["replicatedJobs"]
    ]
    for thing in (*support, *jobs):
        kubernetes_validate.validate(thing, KUBERNETES, strict=True)


def test_everything_is_owned_and_labelled(example: MakeJob, options: ManifestOptions) -> None:
    """The garbage collector and the informer's selector find every object, down to the pods."""
    objects = build(example("demo"), attempt=3, options=options)
    for thing in objects:
        (owner,) = thing["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == (
            "TPUTrainingJob",
            "0a1b2c3d",
            True,
        )
        assert thing["metadata"]["namespace"] == "research"
        assert thing["metadata"]["labels"]["tpujob.dev/job"] == "demo"
    for role, pod in zip(("coordinator", "worker"), pods_of(objects[-1]).values(), strict=True):
        labels = pod["metadata"]["labels"]
        assert labels["tpujob.dev/role"] == role
        assert labels["tpujob.dev/attempt"] == "3"


def test_service_selects_this_attempts_coordinator(
    example: MakeJob, options: ManifestOptions
) -> None:
    """The Service's selector is a subset of the coordinator's labels, and of no worker's."""
    _, service, jobset = build(example("demo"), attempt=3, options=options)
    selector = service["spec"]["selector"].items()
    pods = pods_of(jobset)
    assert selector <= pods["coordinator"]["metadata"]["labels"].items()
    assert not selector <= pods["slice"]["metadata"]["labels"].items()
    ports = {port["name"] for port in pods["coordinator"]["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_jobset_never_gives_up_and_ends_with_the_coordinator(
    example: MakeJob, options: ManifestOptions
) -> None:
    """Containers restart for ever in their pods; only the coordinator's success ends the set."""
    spec = jobset_of(example("demo"), options)["spec"]
    assert spec["successPolicy"]["targetReplicatedJobs"] == ["coordinator"]
    assert spec["failurePolicy"] == {"maxRestarts": 0}
    assert spec["network"]["publishNotReadyAddresses"] is True
    for item in spec["replicatedJobs"]:
        job = item["template"]["spec"]
        assert job["backoffLimit"] == 2**31 - 1
        assert job["template"]["spec"]["restartPolicy"] == "OnFailure"


@pytest.mark.parametrize(
    ("accelerator", "topology", "slices", "hosts", "chips", "is_exclusive"),
    [
        ("v5e", "2x4", 2, 2, "4", True),
        ("v5e", "2x2", 3, 1, "4", False),
        ("v5e", "1x1", 1, 1, "1", False),
        ("v4", "4x4x8", 1, 32, "4", True),
    ],
)
def test_slices(  # noqa: PLR0917 - a table
    accelerator: str,
    topology: str,
    slices: int,
    hosts: int,
    chips: str,
    is_exclusive: bool,
    example: MakeJob,
    options: ManifestOptions,
) -> None:
    """One Job per slice with a pod per host, all of a host's chips, and a node pool per slice."""
    job = example("demo", accelerator=accelerator, topology=topology, slices=slices)
    made = jobset_of(job, options)["spec"]["replicatedJobs"][1]
    assert made["replicas"] == slices
    assert made["template"]["spec"]["completions"] == hosts
    assert made["template"]["spec"]["parallelism"] == hosts
    exclusive = made["template"]["metadata"].get("annotations", {})
    assert bool(exclusive) == is_exclusive
    pod = made["template"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == job.shape.node_selector
    resources = pod["containers"][0]["resources"]
    assert resources["requests"]["google.com/tpu"] == resources["limits"]["google.com/tpu"] == chips


def test_suspension_is_mirrored(example: MakeJob, options: ManifestOptions) -> None:
    """A suspended job makes a suspended JobSet."""
    assert jobset_of(example("demo", suspend=True), options)["spec"]["suspend"] is True
    assert jobset_of(example("demo"), options)["spec"]["suspend"] is False


def test_coordinator_is_told_what_it_needs(example: MakeJob, options: ManifestOptions) -> None:
    """The coordinator's configuration is what the protocol says, budgets used included."""
    job = example("demo", recovery={"budgets": {"userError": 1}})
    jobset = jobset_of(job, options, budgets_used={"process": 4})
    (container,) = pods_of(jobset)["coordinator"]["spec"]["containers"]
    told = CoordinatorConfig.from_json(environment_of(container)[Env.COORDINATOR_CONFIG])
    assert (told.namespace, told.job, told.attempt) == ("research", "demo", 3)
    assert (told.slices, told.hosts_per_slice, told.spares) == (2, 2, 0)
    others = {"process": 20, "infrastructure": -1, "straggler": 3, "noProgress": 5}
    assert told.budgets == {"userError": 1, **others}
    assert (told.straggler_ratio, told.straggler_action) == (1.1, "Report")
    assert told.budgets_used == {"process": 4}
    assert told.chips == 2 * 8


@pytest.mark.parametrize(
    ("interval", "plans"), [({}, True), ({"policy": "Steps", "steps": 9}, False)]
)
def test_intervals_are_left_to_the_coordinator_by_policy(
    interval: dict[str, Any], plans: bool, example: MakeJob, options: ManifestOptions
) -> None:
    """Auto is planned by the coordinator, what a user chose stands."""
    checkpoint = {"directory": "/checkpoints", "interval": interval}
    assert _told(example("demo", checkpoint=checkpoint), options).plans_interval is plans


def _told(job: TPUTrainingJob, options: ManifestOptions) -> CoordinatorConfig:
    """What the coordinator of a job is told."""
    (container,) = pods_of(jobset_of(job, options, budgets_used={}))["coordinator"]["spec"][
        "containers"
    ]
    return CoordinatorConfig.from_json(environment_of(container)[Env.COORDINATOR_CONFIG])


def test_spares_are_slices_too(example: MakeJob, options: ManifestOptions) -> None:
    """The JobSet has a Job for each spare, and the coordinator knows how many train."""
    job = example("demo", slices=2, spares=1)
    assert jobset_of(job, options)["spec"]["replicatedJobs"][1]["replicas"] == 3
    told = _told(job, options)
    assert (told.slices, told.spares, told.smaller_worlds) == (2, 1, [])


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        ({}, [1, 2, 3]),  # cannot be told here: the trainer will
        ({"globalBatch": 64}, [1, 2]),  # 24 chips do not share 64 rows
        ({"globalBatch": 96, "accumulation": 3}, [1, 2]),
        ({"globalBatch": 96}, [1, 2, 3]),
        ({"globalBatch": 12, "mesh": {"tensor": 8}}, [1, 2, 3]),
        ({"globalBatch": 64, "mesh": {"tensor": -1}}, [1, 2, 3]),
        ({"globalBatch": 7}, [1, 2, 3]),  # fits no number of these chips: the devices differ
    ],
)
def test_smaller_worlds_share_the_batch(
    example: MakeJob, options: ManifestOptions, config: Object, sizes: list[int]
) -> None:
    """Numbers of slices that cannot share out the global batch are never tried."""
    elastic = {"minSlices": 1, "replacementTimeoutSeconds": 30}
    job = example("demo", slices=4, trainer={"config": config}, elastic=elastic)
    told = _told(job, options)
    assert told.smaller_worlds == sizes
    assert told.replacement_timeout_ms == 30_000


def test_environment_of_multislice(example: MakeJob, options: ManifestOptions) -> None:
    """Every variable that GKE would inject is there, and refers only to ones before it."""
    container = trainer_of(example("demo"), options)
    found = environment_of(container)
    hosts = "demo-3-slice-$(TPUJOB_SLICE)-0.demo-3,demo-3-slice-$(TPUJOB_SLICE)-1.demo-3"
    assert found["TPU_WORKER_HOSTNAMES"] == hosts
    assert (found["TPU_TOPOLOGY"], found["TPU_ACCELERATOR_TYPE"]) == ("2x4", "v5litepod-8")
    assert found["MEGASCALE_COORDINATOR_ADDRESS"] == "demo-3-slice-0-0.demo-3"
    assert found["MEGASCALE_NUM_SLICES"] == "2"
    assert found[Env.COORDINATOR] == "demo-coordinator-0a1b2c3d.research.svc:7077"
    names = [item["name"] for item in container["env"]]
    assert names.index("TPUJOB_SLICE") < names.index("TPU_WORKER_HOSTNAMES")
    assert len(set(names)) == len(names)


def test_one_slice_has_no_megascale(example: MakeJob, options: ManifestOptions) -> None:
    """A job of one slice does not start libtpu's multislice transport."""
    found = environment_of(trainer_of(example("demo", slices=1), options))
    assert not [name for name in found if name.startswith("MEGASCALE")]


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        ({}, "auto"),
        ({"policy": "Steps", "steps": 5}, "steps:5"),
        ({"policy": "Seconds", "seconds": 7}, "seconds:7"),
    ],
)
def test_checkpoint_settings_reach_the_trainer(
    interval: Object, text: str, example: MakeJob, options: ManifestOptions
) -> None:
    """Directory, interval and number kept are variables of the trainer."""
    checkpoint = {"directory": "gs://b/$(x)", "interval": interval, "keep": 2}
    found = environment_of(trainer_of(example("demo", checkpoint=checkpoint), options))
    assert found[Env.CHECKPOINT_INTERVAL] == text
    assert found[Env.CHECKPOINT_KEEP] == "2"
    # The kubelet turns $$( back into $(.
    assert found[Env.CHECKPOINT_DIR] == "gs://b/$$(x)"


def test_bundled_trainer(example: MakeJob, options: ManifestOptions) -> None:
    """The bundled trainer runs under the agent with its configuration in one variable."""
    job = example("demo")
    container = trainer_of(job, options)
    assert container["command"] == [
        "python3", "/tpujob/agent.pyz", "--", "python", "-m", "tpujob_trainer",
    ]  # fmt: skip
    assert container["image"] == "tpujob/trainer:test"
    assert job.spec.trainer is not None
    found = environment_of(container)
    assert json.loads(found[Env.TRAINER_CONFIG]) == job.spec.trainer.config
    assert found["JAX_PLATFORMS"] == "cpu"
    for module in found[Env.PRELOAD].split(","):
        assert importlib.util.find_spec(module) is not None


def test_own_image_of_the_bundled_trainer(example: MakeJob, options: ManifestOptions) -> None:
    """A job may name another image for the bundled trainer, and a security context."""
    trainer = {"config": {}, "image": "mine", "securityContext": {"runAsUser": 7}}
    pod = worker_of(example("demo", trainer=trainer), options)
    assert pod["containers"][0]["image"] == "mine"
    assert pod["securityContext"] == {"runAsUser": 7}


def test_building_is_pure(templated: MakeJob, options: ManifestOptions) -> None:
    """Building twice gives equal objects, and leaves the job as it was."""
    job = templated({"containers": [CONTAINER], "volumes": [{"name": "v", "emptyDir": {}}]})
    before = job.to_json()
    first = build(job, attempt=1, options=options)
    first[-1]["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"].clear()
    assert build(job, attempt=1, options=options) == build(job, attempt=1, options=options)
    assert job.to_json() == before


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"suspend": True, "ttlSecondsAfterFinished": 4}, []),
        ({"recovery": {"budgets": {"process": 1}}}, []),
        ({"slices": 3}, ["slices"]),
        ({"slices": 3, "topology": "4x4", "spares": 1}, ["slices", "spares", "topology"]),
        ({"recovery": {"preload": ["numpy"]}}, ["recovery.preload"]),
        ({"trainer": {"config": {}}}, ["trainer"]),
        ({"provisioning": {"model": "Spot"}}, ["provisioning"]),
        ({"queue": "q", "queueTopologyLabel": "rack"}, ["queue", "queueTopologyLabel"]),
    ],
)
def test_fields_that_make_a_new_attempt(
    example: MakeJob, changes: dict[str, Any], fields: list[str]
) -> None:
    """What shapes pods is told apart from what does not, and named."""
    made_from = shape(example("demo"))
    assert changed_fields(made_from, example("demo", **changes)) == fields


@pytest.mark.parametrize("made_from", ["", "0123456789abcdef", "[]", "7"])
def test_what_another_release_wrote_changes_nothing(example: MakeJob, made_from: str) -> None:
    """An upgrade of the operator restarts no job."""
    assert changed_fields(made_from, example("demo")) == []


def test_preload(example: MakeJob, options: ManifestOptions) -> None:
    """Modules to preload are the job's own, else what such a program is likely to import."""
    job = example("own-program", recovery={"preload": ["numpy"]})
    made = environment.variables(job, 1, options, grace_s=30)
    names = {item["name"]: item.get("value") for item in made}
    assert names[Env.PRELOAD] == "numpy"
    usual = environment.variables(example("own-program", recovery={}), 1, options, grace_s=30)
    assert {"name": Env.PRELOAD, "value": "jax,flax,optax,orbax.checkpoint"} in usual


def _rules(job: TPUTrainingJob, options: ManifestOptions, avoided: Avoided) -> list[list[Object]]:
    """The rules about nodes of each alternative of the worker pods."""
    jobset = jobset_of(job, options, avoided=avoided)
    affinity = pods_of(jobset)["slice"]["spec"]["affinity"]["nodeAffinity"]
    required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    return [term["matchExpressions"] for term in required["nodeSelectorTerms"]]


def test_pods_keep_away_from_suspects(example: MakeJob, options: ManifestOptions) -> None:
    """By the node's name, and a slice of several hosts by its pool, too."""
    avoided = Avoided(("a", "b"), ("pool",))
    names = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["a", "b"]}
    pool = {"key": "cloud.google.com/gke-nodepool", "operator": "NotIn", "values": ["pool"]}
    assert _rules(example("demo", topology="2x2"), options, avoided) == [[names]]
    assert _rules(example("demo", topology="2x4"), options, avoided) == [[names, pool]]
    annotations = jobset_of(example("demo"), options, avoided=avoided)["metadata"]["annotations"]
    assert annotations["tpujob.dev/avoided-nodes"] == "a,b"


def test_rules_of_the_template_about_nodes_stay(
    templated: MakeJob, options: ManifestOptions
) -> None:
    """Its terms are alternatives: each of them keeps away, and all else is as it was."""
    mine = {"key": "zone", "operator": "In", "values": ["z"]}
    fields = [{"key": "metadata.name", "operator": "In", "values": ["x"]}]
    terms = [{"matchExpressions": [mine]}, {"matchFields": fields}]
    preferred = [{"weight": 1, "preference": {"matchExpressions": [mine]}}]
    affinity = {
        "podAffinity": {},
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        },
    }
    made = templated({"containers": [CONTAINER], "affinity": affinity}, topology="2x2")
    rule = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["a"]}
    avoided = Avoided(("a",))
    assert _rules(made, options, avoided) == [[mine, rule], [rule]]
    spec = pods_of(jobset_of(made, options, avoided=avoided))["slice"]["spec"]
    of_nodes = spec["affinity"]["nodeAffinity"]
    assert of_nodes["preferredDuringSchedulingIgnoredDuringExecution"] == preferred
    required = of_nodes["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required["nodeSelectorTerms"][1]["matchFields"] == fields
    assert worker_of(made, options)["affinity"] == affinity
