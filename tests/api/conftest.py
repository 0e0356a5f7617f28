"""Fixtures of the API's tests."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

Make = Callable[..., dict[str, Any]]


@pytest.fixture
def make_job() -> Make:
    """Makes a valid job; keyword arguments replace parts of its spec, ``None`` removes them."""

    def make(name: str = "j", **changes: Any) -> dict[str, Any]:
        spec = {
            "accelerator": "v5e",
            "topology": "2x4",
            "trainer": {"config": {"steps": 3}},
            "checkpoint": {"directory": "/ckpt"},
            **copy.deepcopy(changes),
        }
        return {
            "apiVersion": "tpujob.dev/v1alpha1",
            "kind": "TPUTrainingJob",
            "metadata": {"name": name, "namespace": "ns", "uid": "uid-1"},
            "spec": {key: value for key, value in spec.items() if value is not None},
        }

    return make


@pytest.fixture
def make_templated(make_job: Make) -> Make:
    """Makes a valid job with a template whose containers are the arguments."""

    def make(*containers: dict[str, Any], **changes: Any) -> dict[str, Any]:
        template = {"spec": {"containers": list(containers)}}
        return make_job(trainer=None, template=template, **changes)

    return make
