"""A plan for a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tpujob_operator.sim.estimate import Capacity, Estimate, hbm_bytes
from tpujob_operator.sim.outcome import Outcome
from tpujob_tpu.chips import GIB
from tpujob_tpu.provisioning import Provisioning

_UNKNOWN = "?"


def show(
    console: Console,
    *,
    own: Estimate,
    check: Mapping[str, Any] | None,
    simulation: Outcome,
    simulated_days: float,
    spares: Sequence[Estimate],
    alternatives: Sequence[Estimate],
    assumptions: Iterable[str],
) -> None:
    """Print it for a person."""
    lines = [_headline(own), _fit(check)]
    lines.append(
        f"expected goodput {own.goodput:.2%}, saving every {own.interval_s:.0f} s; "
        f"simulated: {simulation.goodput:.2%} in {_span(simulated_days)} with "
        f"{simulation.faults} faults"
    )
    console.print("\n".join(lines), highlight=False)
    console.print(_spares(spares))
    console.print(_alternatives(own, alternatives))
    told = "\n".join(f"- {line}" for line in assumptions)
    console.print(f"Estimates, not measurements. Assumed:\n{told}", highlight=False)


def _headline(own: Estimate) -> str:
    capacity = own.capacity
    spares = f" and {capacity.spares} spare" if capacity.spares else ""
    chips = f"{capacity.slices}{spares} x {capacity.accelerator} {capacity.topology}"
    words = [f"{chips} ({capacity.held:,} chips, {capacity.bought.value})"]
    if own.step_s:
        words.append(f"step {_seconds(own.step_s)}")
    if own.mfu:
        words.append(f"MFU {own.mfu:.1%}")
    if own.days is not None:
        words.append(_span(own.days))
    if own.usd is not None:
        words.append(_usd(own.usd))
    if own.usd_per_million_tokens is not None:
        words.append(f"{_usd(own.usd_per_million_tokens, digits=3)} a million tokens")
    return ", ".join(words)


def _fit(check: Mapping[str, Any] | None) -> str:
    if check is None:
        return "fits: not checked (--check asks the TPU compiler, which takes minutes)"
    if "error" in check:
        return f"fits: not known: {check['error']}"
    memory = f"{check['memory']['total'] / GIB:.2f} of {check['hbmBytes'] / GIB:.2f} GiB"
    if check["fits"]:
        bound = check["upperBound"]
        least = f"a step takes at least {_seconds(bound['stepSeconds'])}"
        return f"fits: {memory}; {least}, MFU {bound['mfu']:.1%} at most: {bound['boundBy']}"
    near = check.get("nearestFit")
    advice = f"; the nearest that fits: {near['change']}" if near else "; take a larger slice"
    return f"DOES NOT FIT: {memory} of each device{advice}"


def _spares(rows: Sequence[Estimate]) -> Table:
    table = Table(title="Spare slices", title_justify="left")
    for heading in ("spares", "goodput", "time", "USD", "USD a day"):
        table.add_column(heading, justify="right")
    cheapest = _cheapest(rows)
    for row in rows:
        table.add_row(
            str(row.capacity.spares),
            f"{row.goodput:.2%}",
            _span(row.days),
            _usd(row.usd),
            _usd(row.usd_per_day),
            style="green" if row is cheapest else None,
        )
    return table


def _alternatives(own: Estimate, rows: Sequence[Estimate]) -> Table:
    """A row for each generation, a column for each way to buy it."""
    table = Table(title="Slices with as much peak, by generation", title_justify="left")
    table.add_column("slices\nchips, HBM")
    table.add_column("step", justify="right")
    for way in Provisioning:
        table.add_column(f"{way}\ntime", justify="right")
    cheapest = _cheapest(rows)
    for _, alike in itertools.groupby(rows, key=lambda row: row.capacity.accelerator):
        by_way = {row.capacity.bought: row for row in alike}
        first = next(iter(by_way.values()))
        cells = [_cell(by_way.get(way), own, cheapest) for way in Provisioning]
        table.add_row(_slices(first.capacity), _seconds(first.step_s), *cells, end_section=True)
    return table


def _slices(capacity: Capacity) -> str:
    memory = f"{hbm_bytes(capacity) / GIB:,.0f} GiB"
    name = f"{capacity.slices} x {capacity.accelerator} {capacity.topology}"
    return f"{name}\n{capacity.held:,}, {memory}"


def _cell(row: Estimate | None, own: Estimate, cheapest: Estimate | None) -> Text:
    if row is None:
        return Text("not offered")
    style = "green" if row is cheapest else "bold" if row.capacity == own.capacity else ""
    if row.days is None:
        return Text(f"{_usd(row.usd_per_day)}\na day", style=style)
    return Text(f"{_usd(row.usd)}\n{_span(row.days)}", style=style)


def _cheapest(rows: Sequence[Estimate]) -> Estimate | None:
    priced = [row for row in rows if row.usd is not None]
    return min(priced, key=lambda row: row.usd or 0.0, default=None)


def _seconds(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    if value < 1e-4:
        return "< 0.1 ms"
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"


def _span(days: float | None) -> str:
    """A time in the largest unit of which it is one at least."""
    if days is None:
        return _UNKNOWN
    seconds = days * 86_400
    units = (("days", 86_400), ("h", 3_600), ("min", 60))
    unit, length = next((found for found in units if seconds >= found[1]), ("s", 1))
    return f"{seconds / length:,.2f} {unit}"


def _usd(value: float | None, digits: int = 0) -> str:
    if value is None:
        return _UNKNOWN
    if 0 < value < 0.5 * 10**-digits:
        return f"< ${10**-digits:,.{digits}f}"
    return f"${value:,.{digits}f}"
