"""A picture of a ladder of outcomes: where the time went, row by row. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from tpujob_operator.sim.outcome import Outcome

_COLOURS = {
    "work done": "#2c7a4b",
    "lost": "#c0392b",
    "saves": "#e0a030",
    "noticing": "#8e6bb0",
    "pods": "#5b7fb5",
    "starting": "#9db8d9",
}


def draw(outcomes: Sequence[Outcome], title: str, path: Path) -> None:
    """Write a picture of the kind that the file's name says."""
    with mpl.rc_context({"font.size": 9, "svg.hashsalt": "tpujob"}):
        figure = Figure(figsize=(9, 0.55 * len(outcomes) + 1.6), layout="constrained")
        axes = figure.subplots()
        names = [outcome.name for outcome in outcomes]
        left = [0.0] * len(outcomes)
        for group, colour in _COLOURS.items():
            widths = [100 * outcome.shares.get(group, outcome.work) for outcome in outcomes]
            axes.barh(names, widths, left=left, color=colour, label=group, height=0.66)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        for place, outcome in enumerate(outcomes):
            label = f"{100 * outcome.work:.1f} %"
            axes.text(1, place, label, va="center", color="white", fontweight="bold")
        axes.invert_yaxis()
        axes.set_xlim(0, 100)
        axes.set_xlabel("share of the time, in percent (simulated)")
        axes.set_title(title, fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(
            ncols=len(_COLOURS), loc="upper center", bbox_to_anchor=(0.4, -0.2), frameon=False
        )
        figure.savefig(path, dpi=130, metadata=None)
