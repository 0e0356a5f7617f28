"""Tables of a job's status for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table

from tpujob_operator.core.grouping import GoogleKind, grouped
from tpujob_operator.core.timetypes import DESCRIPTIONS, TimeType


def times(seconds: Mapping[str, float], wall: float, unsettled: float = 0.0) -> Table:
    """Seconds by type, the largest first, with what each type is."""
    table = Table(title="Where every second went", title_justify="left", show_footer=True)
    total = sum(seconds.values()) + unsettled
    table.add_column("type", footer="sum")
    table.add_column("seconds", justify="right", footer=f"{total:.3f}")
    table.add_column("share", justify="right", footer=f"wall {wall:.3f}")
    table.add_column("what it is")
    rows = {name: (amount, DESCRIPTIONS[TimeType(name)]) for name, amount in seconds.items()}
    rows["unsettled"] = (unsettled, "steps that no committed checkpoint covers yet")
    for name, (amount, text) in sorted(rows.items(), key=lambda row: -row[1][0]):
        if amount > 0:
            style = "green" if name == TimeType.PRODUCTIVE.value else None
            table.add_row(name, f"{amount:.3f}", _share(amount, wall), text, style=style)
    return table


def kinds(seconds: Mapping[str, float], wall: float, unsettled: float = 0.0) -> Table:
    """The same in the kinds of Google's goodput library."""
    table = Table(title="In Google's kinds", title_justify="left")
    table.add_column("kind")
    table.add_column("seconds", justify="right")
    table.add_column("share", justify="right")
    for kind, amount in sorted(grouped(seconds, unsettled).items(), key=lambda row: -row[1]):
        if amount > 0:
            style = "green" if kind is GoogleKind.GOODPUT else None
            table.add_row(kind.value, f"{amount:.3f}", _share(amount, wall), style=style)
    return table


def incidents(given: Iterable[Mapping[str, Any]]) -> Table:
    """What happened, where, and how it was recovered from."""
    table = Table(title="Incidents", title_justify="left")
    for heading in ("cause", "rung", "where", "at step", "detected", "resumed", "steps lost"):
        table.add_column(heading, justify="left" if heading in ("cause", "where") else "right")
    for incident in given:
        table.add_row(
            str(incident.get("cause")),
            str(incident.get("rung")),
            _place(incident),
            str(incident.get("step")),
            _after(incident.get("detectedAfterSeconds")),
            _after(incident.get("recoveredAfterSeconds")),
            str(incident.get("lostSteps", "")),
        )
    return table


def _place(incident: Mapping[str, Any]) -> str:
    if "slice" not in incident:
        return "the job"
    node = f" on {incident['node']}" if incident.get("node") else ""
    return f"slice {incident['slice']} host {incident.get('worker')}{node}"


def _share(amount: float, wall: float) -> str:
    return f"{100 * amount / wall:.1f} %" if wall else ""


def _after(seconds: float | None) -> str:
    return "" if seconds is None else f"after {seconds:.2f} s"
