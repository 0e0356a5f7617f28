"""The chart's objects, as Helm renders them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart

CHART = Path(__file__).parents[1] / "charts" / "tpujob-operator"


def rendered(
    values: dict[str, Any] | None = None, *, name: str = "tpujob", namespace: str = "tpujob-system"
) -> list[dict[str, Any]]:
    """Every object of a release of the chart with these values."""
    with Chart.load(CHART) as chart:
        files = chart.render(values, name=name, namespace=namespace)
    return [
        document
        for path, text in files.items()
        if path.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if document
    ]
