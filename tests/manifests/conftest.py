"""Fixtures of the manifests' tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tpujob_operator.api.models import TPUTrainingJob, parse_job
from tpujob_operator.core.manifests.options import ManifestOptions

EXAMPLES = Path(__file__).parents[2] / "examples"
MakeJob = Callable[..., TPUTrainingJob]


@pytest.fixture
def options() -> ManifestOptions:
    """Settings of an operator."""
    return ManifestOptions(
        operator_key="key-of-the-operator",
        operator_image="tpujob/operator:test",
        trainer_image="tpujob/trainer:test",
    )


@pytest.fixture
def example() -> MakeJob:
    """Reads a job of examples/; keyword arguments replace parts of its spec."""

    def read(name: str, **changes: Any) -> TPUTrainingJob:
        raw = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
        raw["metadata"] |= {"namespace": "research", "uid": "0a1b2c3d"}
        raw["spec"] |= changes
        return parse_job(raw)

    return read


@pytest.fixture
def templated(example: MakeJob) -> MakeJob:
    """Makes a job with this pod spec as its template."""

    def make(pod: dict[str, Any], **changes: Any) -> TPUTrainingJob:
        return example("own-program", template={"spec": pod}, **changes)

    return make
