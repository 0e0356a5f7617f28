"""The report of a run: where every second went, what each incident cost, what the losses say."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from tpujob_operator.cli import tables
from tpujob_operator.core.timetypes import TimeType

#: The API rounds seconds to milliseconds, so 18 types may differ from wall time by their rounding.
TOLERANCE_S = 0.001 * len(TimeType)


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What ``build/demo/report.json`` holds."""

    succeeded: bool
    wall_seconds: float
    seconds: Mapping[str, float]
    incidents: list[Mapping[str, Any]]
    losses: Mapping[int, float]
    goodput_ratio: float
    problems: list[str]

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object; ``losses`` by step, in the order of steps."""
        return {
            "succeeded": self.succeeded,
            "wallSeconds": self.wall_seconds,
            "seconds": dict(self.seconds),
            "goodputRatio": self.goodput_ratio,
            "incidents": [dict(incident) for incident in self.incidents],
            "losses": {str(step): self.losses[step] for step in sorted(self.losses)},
            "problems": self.problems,
        }

    def write(self, path: Path) -> None:
        """Write the report; an older one is replaced whole."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(self.to_json(), indent=1) + "\n")
        draft.replace(path)


def build(
    job: Mapping[str, Any],
    losses: Mapping[int, float],
    reference: Mapping[int, float],
    *,
    steps: int,
    faults: int,
) -> Report:
    """The report of a finished job, with all that is wrong with it in ``problems``."""
    status = job.get("status", {})
    goodput = status.get("goodput", {})
    seconds = {name: float(value) for name, value in goodput.get("seconds", {}).items()}
    wall = float(goodput.get("wallSeconds", 0.0))
    succeeded = status.get("state") == "Succeeded"
    incidents = list(status.get("incidents", []))
    problems = []
    if not succeeded:
        problems.append(f"the job ended {status.get('state', 'without a state')}: {why(status)}")
    if abs(sum(seconds.values()) - wall) > TOLERANCE_S:
        problems.append(f"types add up to {sum(seconds.values()):.3f} s, wall time is {wall:.3f} s")
    if len(incidents) != faults:
        problems.append(f"{faults} faults were made, {len(incidents)} incidents are in status")
    problems += compare(losses, reference, steps)
    return Report(
        succeeded,
        wall,
        seconds,
        incidents,
        losses,
        float(goodput.get("ratio", 0.0)),
        problems,
    )


def compare(losses: Mapping[int, float], reference: Mapping[int, float], steps: int) -> list[str]:
    """What differs between a run that was hit and one that was not: nothing should, bit for bit."""
    missing = [step for step in range(1, steps + 1) if step not in losses]
    if missing:
        return [f"no loss was told for {len(missing)} steps, the first is {missing[0]}"]
    odd = [step for step in range(1, steps + 1) if losses[step] != reference.get(step)]
    if odd:
        step = odd[0]
        difference = f"{losses[step]!r} instead of {reference.get(step)!r}"
        return [
            f"{len(odd)} losses differ from the uninterrupted course: step {step}: {difference}"
        ]
    return []


def why(status: Mapping[str, Any]) -> str:
    """The words of the newest condition that says what is wrong."""
    for kind in ("Failed", "Stalled", "Degraded", "Restarting"):
        for condition in status.get("conditions", []):
            if condition["type"] == kind and condition["status"] == "True":
                return f"{condition['reason']}: {condition['message']}"
    return "no condition says why"


def show(report: Report, console: Console) -> None:
    """Print the report for a person."""
    console.print(tables.times(report.seconds, report.wall_seconds))
    console.print(tables.kinds(report.seconds, report.wall_seconds))
    console.print(tables.incidents(report.incidents))
    console.print("[bold]Loss by step[/bold]")
    console.print(curve(report.losses), highlight=False)
    for problem in report.problems:
        console.print(f"[bold red]✗[/bold red] {problem}")


def curve(losses: Mapping[int, float], *, width: int = 72, height: int = 10) -> str:
    """The losses as a curve of characters, with its scale."""
    steps = [step for step in sorted(losses) if math.isfinite(losses[step])]
    if not steps:
        return "(no losses)"
    first, last = steps[0], steps[-1]
    low, high = min(losses[s] for s in steps), max(losses[s] for s in steps)
    span, rise = max(1, last - first), (high - low) or 1.0
    rows = [[" "] * width for _ in range(height)]
    for step in steps:
        column = (step - first) * (width - 1) // span
        row = round((high - losses[step]) / rise * (height - 1))
        rows[row][column] = "•"
    labels = [high - rise * i / (height - 1) for i in range(height)]
    lines = [f"{label:7.3f} ┤{''.join(row)}" for label, row in zip(labels, rows, strict=True)]
    axis = f"{first}".ljust(width - len(str(last))) + str(last)
    return "\n".join([*lines, f"{'':8}└{'─' * width}", f"{'step':>8} {axis}"])


def milliseconds(timestamp: str) -> int:
    """Milliseconds since the epoch of an RFC 3339 time."""
    return round(dt.datetime.fromisoformat(timestamp).timestamp() * 1000)


def resumed_at_ms(incident: Mapping[str, Any]) -> int | None:
    """When the first step after an incident was finished, milliseconds since the epoch."""
    after = incident.get("recoveredAfterSeconds")
    return None if after is None else milliseconds(incident["at"]) + round(1000 * float(after))
