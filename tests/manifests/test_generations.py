"""Nodes, chips and environment of every generation: single host, several hosts, several slices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.golden import assert_reviewed
from tests.manifests.parts import Object, environment_of, jobset_of, pods_of
from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.core.manifests.options import ManifestOptions
from tpujob_tpu.catalogue import USABLE, chips_of
from tpujob_tpu.generations import Generation

GOLDEN = Path(__file__).parent / "golden" / "generations"
MakeJob = Callable[..., TPUTrainingJob]


def _made(job: TPUTrainingJob, options: ManifestOptions) -> Object:
    """What differs between generations and shapes."""
    jobset = jobset_of(job, options)
    slices = jobset["spec"]["replicatedJobs"][1]
    pod = pods_of(jobset)["slice"]["spec"]
    trainer = pod["containers"][0]
    return {
        "slices": slices["replicas"],
        "hosts": slices["template"]["spec"]["completions"],
        "placement": slices["template"]["metadata"].get("annotations", {}),
        "nodeSelector": pod["nodeSelector"],
        "chips": trainer["resources"]["limits"]["google.com/tpu"],
        "env": {
            name: value
            for name, value in environment_of(trainer).items()
            if name.startswith(("TPU_", "MEGASCALE_"))
        },
    }


def _shapes(generation: Generation) -> dict[str, tuple[str, int]]:
    """Topology and number of slices of each case: the smallest that show it."""
    per_host = generation.chips_per_host
    by_chips = sorted(generation.topologies, key=chips_of)
    whole = next(name for name in by_chips if chips_of(name) == per_host)
    several = next(name for name in by_chips if chips_of(name) > per_host)
    cases = {"single host": (whole, 1), "several hosts": (several, 1)}
    cases |= {"several slices": (several, 2), "slices of a host": (whole, 2)}
    if chips_of(by_chips[0]) < per_host:
        cases["single chip"] = (by_chips[0], 1)
    return cases


@pytest.mark.parametrize("generation", USABLE, ids=lambda generation: generation.name)
def test_golden(generation: Generation, example: MakeJob, options: ManifestOptions) -> None:
    """The pods of each shape are those that were reviewed (UPDATE_GOLDEN=1 writes them)."""
    trainer = {"config": {"steps": 1}}
    found = {}
    for name, (topology, slices) in _shapes(generation).items():
        job = example(
            "demo",
            accelerator=generation.name,
            topology=topology,
            slices=slices,
            trainer=trainer,
        )
        found[f"{name}: {slices} x {topology}"] = _made(job, options)
    made = yaml.safe_dump(found, sort_keys=False, width=100)
    path = GOLDEN / f"{generation.name}.yaml"
    assert_reviewed(path, made)
