"""Fixtures of the chart's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart

CHART = Path(__file__).parents[2] / "charts" / "tpujob-operator"
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
        with Chart.load(CHART) as chart:
            files = chart.render(values, name=name, namespace="tpujob-system")
        documents = [
            document
            for path, text in files.items()
            if path.endswith(".yaml")
            for document in yaml.safe_load_all(text)
            if document
        ]
        return {f"{item['kind']}/{item['metadata']['name']}": item for item in documents}

    return made
