"""Pictures of times: one colour for each type, and a picture of a job's report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from tpujob_operator.core.timetypes import TimeType

if TYPE_CHECKING:
    from tpujob_client.report import Report

COLOURS: Mapping[TimeType, str] = {
    TimeType.PRODUCTIVE: "#2e9e5b",
    TimeType.DEGRADED: "#a9d18e",
    TimeType.DECLARED: "#76d7c4",
    TimeType.ROLLBACK: "#c0392b",
    TimeType.DETECTION: "#8e44ad",
    TimeType.TEARDOWN: "#7f8c8d",
    TimeType.QUEUED: "#f9e79f",
    TimeType.PROVISIONING: "#f0c987",
    TimeType.IMAGE: "#e59f3c",
    TimeType.RUNTIME_INIT: "#5dade2",
    TimeType.RESTORE: "#1f618d",
    TimeType.COMPILE: "#16a2b8",
    TimeType.SETUP: "#aed6f1",
    TimeType.CHECKPOINT_STALL: "#b7950b",
    TimeType.INPUT_WAIT: "#d98880",
    TimeType.BACKOFF: "#bdc3c7",
    TimeType.SUSPENDED: "#d5d8dc",
    TimeType.UNATTRIBUTED: "#000000",
}
_UNSETTLED = "#8fd3ab"


def draw(report: Report, path: Path) -> None:
    """Write a picture of the kind that the file's name says: types by time, with their shares."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    rows = _rows(report)
    names, amounts, colours = zip(*rows, strict=True)
    axes.barh(names, amounts, color=colours, height=0.7)
    for place, amount in enumerate(amounts):
        share = 100 * amount / report.wall_s if report.wall_s else 0.0
        axes.text(amount, place, f"  {amount:,.1f} s, {share:.1f} %", va="center", fontsize=9)
    _finish(axes, report)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _rows(report: Report) -> list[tuple[str, float, str]]:
    rows = [(name, s, COLOURS[TimeType(name)]) for name, s in report.seconds.items() if s > 0]
    if report.unsettled_s:
        rows.append(("unsettled", report.unsettled_s, _UNSETTLED))
    return sorted(rows, key=lambda row: -row[1]) or [("nothing yet", 0.0, _UNSETTLED)]


def _finish(axes: Any, report: Report) -> None:
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.set_xlabel(f"seconds of {report.wall_s:,.1f} since the job was created")
    axes.set_title(report.headline(), loc="left", fontsize=10, parse_math=False)  # it has dollars
    axes.spines[["top", "right"]].set_visible(False)
