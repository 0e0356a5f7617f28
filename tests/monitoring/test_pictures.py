"""Pictures show what the panels ask for; the drawing itself needs Node, and is done by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from monitoring import dashboards, pictures

VALUES = {"namespace": "n", "job": "j", "__rate_interval": "30s"}


def test_panels_get_their_series_with_legends() -> None:
    """Every query is asked, variables filled in; legends are filled from labels."""
    asked = []

    def ask(expression: str) -> pictures.Series:
        asked.append(expression)
        return [({"type": "compile", "namespace": "n", "job": "j"}, [(1.0, 2.0), (2.0, 3.0)])]

    boards = dict(dashboards.outputs())
    made = pictures.board("job", boards["job.json"], ask, VALUES)
    assert len(asked) == len(dashboards.queries(boards["job.json"]))
    assert not [expression for expression in asked if "$" in expression]
    assert made["rows"] > 20
    panels = {panel["title"]: panel for panel in made["panels"]}
    stacked = panels["Where the time goes"]
    assert stacked["isStacked"]
    assert stacked["series"] == [{"name": "compile", "times": [1e3, 2e3], "values": [2.0, 3.0]}]
    assert panels["Step"]["type"] == "stat"
    assert not panels["Steps"]["isStacked"]


def test_what_is_no_number_is_left_out() -> None:
    """Prometheus tells a share of nothing as NaN."""
    assert pictures.numbers([(1.0, "0.5"), (2.0, "NaN"), (3.0, "+Inf")]) == [(1.0, 0.5)]


def test_missing_node_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Who has no Node is told what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="Node 20 with npm"):
        pictures.draw([], tmp_path / "out")
