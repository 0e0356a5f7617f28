"""A ledger as it is stored, and back: what comes back must add up."""

from __future__ import annotations

import dataclasses
from typing import Any

from tpujob_agent.protocol import Phase
from tpujob_operator.core.chips import Chips
from tpujob_operator.core.ledger import Ledger, phase_of
from tpujob_operator.core.segments import Segment
from tpujob_operator.core.stored import items, known_fields, table, whole
from tpujob_operator.core.timetypes import amounts


def to_json(ledger: Ledger) -> dict[str, Any]:
    """A JSON object from which ``from_json`` makes an equal ledger."""
    raw = dataclasses.asdict(ledger)
    for name in ("closed", "closed_chips"):
        raw[name] = {kind.value: amount for kind, amount in sorted(raw[name].items())}
    raw["unsettled"] = [list(dataclasses.astuple(segment)) for segment in ledger.unsettled]
    raw["phase"] = ledger.phase.value
    return raw


def from_json(raw: object) -> Ledger:
    """Inverse of ``to_json``; keys of other versions are ignored.

    Raises:
        TypeError: a value is of another type than its field.
        ValueError: the values cannot all be true.
    """
    raw = table(raw)
    values = known_fields(Ledger, raw)
    for name in ("closed", "closed_chips"):
        values[name] = amounts(raw.get(name, {}))
    values["chips"] = Chips.from_json(raw.get("chips", {}))
    values["unsettled"] = tuple(
        Segment(*map(whole, items(parts))) for parts in items(raw.get("unsettled", []))
    )
    values["phase"] = phase_of(raw.get("phase", Phase.STARTING))
    ledger = Ledger(**values)
    _check(ledger)
    return ledger


def _check(ledger: Ledger) -> None:
    booked_ms = sum(ledger.closed.values()) + sum(part.total_ms for part in ledger.unsettled)
    life_ms = ledger.cursor_ms - ledger.created_ms
    if booked_ms != life_ms:  # somebody has changed one of them
        raise ValueError(f"{booked_ms} ms are booked, of {life_ms} ms")
    if any(part.steps < 1 for part in ledger.unsettled):
        raise ValueError("a stretch of steps ends before it begins")
