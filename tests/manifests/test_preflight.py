"""The Job of a preflight: a worker's container without chips, with another command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.golden import assert_reviewed
from tests.manifests.parts import environment_of, trainer_of
from tests.manifests.test_manifests import KUBERNETES
from tpujob_agent.protocol import Env
from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.core.manifests import preflight
from tpujob_operator.core.manifests.options import ManifestOptions

GOLDEN = Path(__file__).parent / "golden" / "preflight.yaml"
MakeJob = Callable[..., TPUTrainingJob]


def test_golden(example: MakeJob, options: ManifestOptions) -> None:
    """The Job is the one that was reviewed (UPDATE_GOLDEN=1 writes it)."""
    made = preflight.build(example("llama3-8b", preflight="Compile"), options)
    text = yaml.safe_dump(made, sort_keys=False)
    assert_reviewed(GOLDEN, text)
    kubernetes_validate.validate(yaml.safe_load(text), KUBERNETES, strict=True)


def test_it_reads_what_the_workers_read(example: MakeJob, options: ManifestOptions) -> None:
    """Same image and configuration; no chip, no volume that is on another node."""
    job = example("demo")
    pod = preflight.build(job, options)["spec"]["template"]["spec"]
    [container] = pod["containers"]
    worker = trainer_of(job, options)
    assert container["image"] == worker["image"]
    config = Env.TRAINER_CONFIG
    assert environment_of(container)[config] == environment_of(worker)[config]
    assert f"--config=env:{config}" in container["command"]
    assert "google.com/tpu" not in str(pod)
    assert "volumes" not in pod
    assert pod["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    ("changes", "is_other"),
    [
        ({}, False),
        ({"spares": 1}, False),
        ({"suspend": True}, False),
        ({"checkpoint": {"directory": "/c", "keep": 9}}, False),
        ({"topology": "4x4"}, True),
        ({"slices": 4}, True),
        ({"accelerator": "v6e"}, True),
        ({"trainer": {"config": {"steps": 7}}}, True),
        ({"trainer": {"config": {}, "env": [{"name": "XLA_FLAGS", "value": "-x"}]}}, True),
        ({"trainer": {"config": {}, "image": "another"}}, True),
    ],
)
def test_the_digest_follows_what_the_answer_depends_on(
    changes: dict[str, Any], is_other: bool, example: MakeJob
) -> None:
    """And nothing else: a change of it alone asks the compiler again."""
    first = preflight.checked(example("demo"))
    assert (preflight.checked(example("demo", **changes)) != first) is is_other
