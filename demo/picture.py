"""A picture of a run: what its time was, and how step and loss went, over the same clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt  # after the choice of a back end without a display
from matplotlib.patches import Patch

from demo.timeline import Stretch
from tpujob_operator.cli.picture import COLOURS
from tpujob_operator.core.timetypes import TimeType


def draw(
    path: Path,
    *,
    stretches: Sequence[Stretch],
    steps: Sequence[tuple[int, int]],
    losses: Mapping[int, float],
    incidents: Sequence[Mapping[str, Any]],
    title: str,
) -> None:
    """Write the picture as PNG; ``steps`` are (time in ms, step) in the order of time."""
    begin = stretches[0].start_ms
    figure, (band, step_axis, loss_axis) = plt.subplots(
        3, 1, figsize=(12, 7.2), height_ratios=[1, 3, 2.4], constrained_layout=True
    )
    _draw_band(band, stretches, begin)
    _draw_steps(step_axis, steps, begin, incidents)
    step_axis.set_xlim(band.get_xlim())
    loss_axis.plot(sorted(losses), [losses[s] for s in sorted(losses)], color="#34495e", lw=1.4)
    loss_axis.set(xlabel="step", ylabel="loss")
    for axis in (step_axis, loss_axis):
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_band(axis: Any, stretches: Sequence[Stretch], begin: int) -> None:
    totals: dict[TimeType, int] = {}
    for stretch in stretches:
        span = stretch.end_ms - stretch.start_ms
        totals[stretch.kind] = totals.get(stretch.kind, 0) + span
        colour = COLOURS[stretch.kind]
        axis.broken_barh([((stretch.start_ms - begin) / 1000, span / 1000)], (0, 1), color=colour)
    axis.set(yticks=[], xlim=(0, (stretches[-1].end_ms - begin) / 1000), ylim=(0, 1))
    axis.set_xlabel("seconds since the job was applied")
    axis.spines[["top", "right", "left"]].set_visible(False)
    entries = [
        Patch(color=COLOURS[kind], label=f"{kind.value} {total / 1000:.1f} s")
        for kind, total in sorted(totals.items(), key=lambda item: -item[1])
        if total >= 50
    ]
    axis.legend(
        handles=entries,
        ncols=min(6, len(entries)),
        loc="lower left",
        bbox_to_anchor=(0, 1.02),
        frameon=False,
        fontsize=9,
    )


def _draw_steps(
    axis: Any, steps: Sequence[tuple[int, int]], begin: int, incidents: Sequence[Mapping[str, Any]]
) -> None:
    axis.plot(
        [(at - begin) / 1000 for at, _ in steps],
        [step for _, step in steps],
        color="#2e9e5b",
        lw=1.8,
    )
    axis.set_ylabel("step")
    for incident in incidents:
        at = float(incident["atSeconds"])
        axis.axvline(at, color="#c0392b", lw=1, ls="--")
        axis.annotate(
            str(incident["label"]),
            (at, 0.98),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            color="#c0392b",
            fontsize=9,
            va="top",
        )
