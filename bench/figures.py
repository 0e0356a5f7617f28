"""How figures are printed: median and range over the runs, and the machine they came from."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence


def show(name: str, values: Sequence[float], unit: str, bar: float | None = None) -> None:
    """Print median, range and, where there is one, the bar and the share of it that was used."""
    median = statistics.median(values)
    line = (
        f"{name:<44} {median:9.2f} {unit}  ({min(values):.2f}-{max(values):.2f}, n {len(values)})"
    )
    if bar is not None:
        line += f"  bar {bar:g} {unit}, {100 * median / bar:.0f} % of it"
    print(line, flush=True)


def machine() -> str:
    """The machine and how busy it is: figures without it say little."""
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} cores, 1-minute load {load:.1f}"
