"""The objects of jobs whose programs no agent runs."""

from collections.abc import Callable

import pytest

from tests.manifests.parts import CONTAINER, environment_of, jobset_of, pods_of, trainer_of
from tpujob_agent.protocol import Env
from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.core.manifests.options import ManifestOptions
from tpujob_operator.core.manifests.shape import changed_fields, shape

MakeJob = Callable[..., TPUTrainingJob]
TEMPLATE = {"spec": {"containers": [CONTAINER]}}


def test_the_program_runs_as_it_is(example: MakeJob, options: ManifestOptions) -> None:
    """No agent, no volumes, no other command; the kubelet keeps the last words of the program."""
    made = jobset_of(example("recreated-program", template=TEMPLATE), options)
    assert list(pods_of(made)) == ["slice"]
    spec = pods_of(made)["slice"]["spec"]
    assert not {"initContainers", "volumes"} & spec.keys()
    assert spec["restartPolicy"] == "Never"
    (container,) = spec["containers"]
    assert (container["command"], container["args"]) == (CONTAINER["command"], CONTAINER["args"])
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert "volumeMounts" not in container


def test_one_end_is_the_end_of_the_attempt(example: MakeJob, options: ManifestOptions) -> None:
    """Nothing is made anew within the JobSet, which has succeeded when all slices have."""
    spec = jobset_of(example("recreated-program"), options)["spec"]
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["slice"]}
    assert spec["failurePolicy"] == {"maxRestarts": 0}
    assert [item["template"]["spec"]["backoffLimit"] for item in spec["replicatedJobs"]] == [0]


@pytest.mark.parametrize(("slices", "process"), [(1, "$(TPUJOB_HOST)"), (2, None)])
def test_processes_find_each_other(
    slices: int, process: str | None, example: MakeJob, options: ManifestOptions
) -> None:
    """JAX's variables name the first host of the attempt; all that GKE injects is there, too."""
    job = example("recreated-program", slices=slices)
    found = environment_of(trainer_of(job, options))
    leader = "recreated-program-3-slice-0-0.recreated-program-3"
    assert found["JAX_COORDINATOR_ADDRESS"] == f"{leader}:20000"
    assert found["JAX_NUM_PROCESSES"] == str(slices * 4)
    assert found.get("JAX_PROCESS_ID") == process
    assert found.get("MEGASCALE_COORDINATOR_ADDRESS") == (leader if slices > 1 else None)
    assert found["TPU_WORKER_HOSTNAMES"].count(",") == 3
    assert found[Env.CHECKPOINT_DIR] == "gs://bucket/recreated-program"
    assert not {Env.COORDINATOR, Env.TOKEN, Env.RUN_DIR, Env.PRELOAD} & found.keys()


def test_a_change_makes_a_new_attempt(example: MakeJob) -> None:
    """Attempts that were made before the field existed count as recovering in place."""
    before = example("own-program", health={}, recovery={})
    after = example("own-program", health={}, recovery={"pods": "Recreate"})
    assert "recovery.pods" not in shape(before)
    assert changed_fields(shape(before), after) == ["recovery.pods"]
    assert changed_fields(shape(after), before) == ["recovery.pods"]
