"""Fixtures of the chart's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helm_python import Config

from localcluster.cluster import Cluster
from tests.rendering import CHART, rendered

Objects = dict[str, dict[str, Any]]
Render = Callable[..., Objects]


@pytest.fixture(scope="session")
def chart_path() -> Path:
    """The chart's folder."""
    return CHART


@pytest.fixture
def render() -> Render:
    """Renders the chart; the objects are keyed by kind/name."""

    def made(values: dict[str, Any] | None = None, name: str = "tpujob") -> Objects:
        documents = rendered(values, name=name)
        return {f"{item['kind']}/{item['metadata']['name']}": item for item in documents}

    return made


@pytest.fixture
def helm(control_plane: Cluster, namespace: str) -> Iterator[Config]:
    """Helm in a namespace of one's own; what it installs is removed."""
    with Config(kubeconfig_path=str(control_plane.kubeconfig), namespace=namespace) as config:
        yield config
        for release in config.list():
            config.uninstall(release["name"])
