"""The live view: a panel on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

from demo.watch import Watch

_LINE_EVERY_S = 5.0


class View:
    """Shows a watched job until it is closed; use as a context manager."""

    def __init__(self, console: Console, watch: Watch, *, steps: int) -> None:
        self._console = console
        self._watch = watch
        self._steps = steps
        self._live = Live(console=console, refresh_per_second=8, transient=True)
        self._turn = ""
        self._line = ""
        self._told_at = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def tick(self) -> None:
        """Show what is known now."""
        if self._console.is_terminal:
            self._live.update(self._panel())
        else:
            self._tell()

    def _facts(self) -> dict[str, str]:
        status = self._watch.status
        goodput = status.get("goodput", {}).get("ratio")
        checkpoint = status.get("checkpoint", {}).get("step")
        loss = status.get("progress", {}).get("lastLoss")
        return {
            "state": self._watch.state,
            "step": f"{self._watch.step}/{self._steps}",
            "loss": "-" if loss is None else f"{loss:.4f}",
            "checkpoint": "-" if checkpoint is None else str(checkpoint),
            "world": str(status.get("generation") or "-"),
            "goodput": "-" if goodput is None else f"{100 * goodput:.1f} %",
            "incidents": str(len(status.get("incidents", []))),
        }

    def _tell(self) -> None:
        facts = self._facts()
        turn = facts["state"] + facts["world"] + facts["incidents"]
        line = "  ".join(f"{name} {value}" for name, value in facts.items())
        is_due = time.monotonic() - self._told_at >= _LINE_EVERY_S and line != self._line
        if turn == self._turn and not is_due:
            return
        self._turn, self._line, self._told_at = turn, line, time.monotonic()
        self._console.print(f"        {line}")

    def _panel(self) -> Panel:
        facts = self._facts()
        grid = Table.grid(padding=(0, 3))
        for _ in facts:
            grid.add_column()
        grid.add_row(*(f"[dim]{name}[/dim]" for name in facts))
        grid.add_row(*(f"[bold]{value}[/bold]" for value in facts.values()))
        bar = ProgressBar(total=self._steps, completed=self._watch.step)
        incidents = [_sentence(incident) for incident in self._watch.status.get("incidents", [])]
        name = self._watch.job.get("metadata", {}).get("name", "")
        return Panel(
            Group(grid, bar, *incidents), title=f"TPUTrainingJob {name}", title_align="left"
        )


def _sentence(incident: dict[str, Any]) -> str:
    recovered = incident.get("recoveredAfterSeconds")
    end = "recovering" if recovered is None else f"resumed after {recovered:.1f} s"
    where = f"slice {incident.get('slice')} host {incident.get('worker')}"
    return f"[red]●[/red] {incident['cause']} at step {incident.get('step')} ({where}): {end}"
