"""Stretches of time by type, as the ledger cuts them, for a picture of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tpujob_agent.protocol import Event, EventKind
from tpujob_operator.core.ledger import Ledger
from tpujob_operator.core.timetypes import TimeType


@dataclasses.dataclass(frozen=True, slots=True)
class Stretch:
    """Time of one type; a stretch of steps tells which ones it holds."""

    start_ms: int
    end_ms: int
    kind: TimeType
    first_step: int = 0
    last_step: int = 0


def stretches(created_ms: int, events: Iterable[Event], end_ms: int) -> list[Stretch]:
    """Stretches from the job's creation to ``end_ms``, without gaps.

    Steps that were lost are shown as rollback from the restore on that gave them up.
    """
    ledger, found = Ledger.start(created_ms), list[Stretch]()
    for event in events:
        after = ledger.apply(event)
        found += _between(ledger, after, event)
        if event.kind is EventKind.RESTORED:
            step = int(event.data["step"])
            found = [part for stretch in found for part in _given_up(stretch, step)]
        ledger = after
    if end_ms > ledger.cursor_ms:
        found.append(Stretch(ledger.cursor_ms, end_ms, ledger.type_now))
    return _joined(found)


def _between(before: Ledger, after: Ledger, event: Event) -> list[Stretch]:
    start, end = before.cursor_ms, after.cursor_ms
    if end <= start:
        return []
    if event.kind is not EventKind.LOSS or not before.generation:
        first_step = min(before.last_step + 1, after.last_step)
        return [Stretch(start, end, before.type_now, first_step, after.last_step)]
    onset = min(max(start, int(event.data["onsetAtMs"])), end)
    detected = min(max(onset, int(event.data.get("detectedAtMs", end))), end)
    first = TimeType.ROLLBACK if before.is_training else before.type_now
    cut = [
        Stretch(start, onset, first),
        Stretch(onset, detected, TimeType.DETECTION),
        Stretch(detected, end, TimeType.TEARDOWN),
    ]
    return [stretch for stretch in cut if stretch.end_ms > stretch.start_ms]


def _given_up(stretch: Stretch, restored_step: int) -> list[Stretch]:
    """The stretch with its steps after ``restored_step`` as rollback, time shared out by steps."""
    if stretch.kind is not TimeType.PRODUCTIVE or stretch.last_step <= restored_step:
        return [stretch]
    kept = max(0, restored_step - stretch.first_step + 1)
    steps = stretch.last_step - stretch.first_step + 1
    cut_ms = stretch.start_ms + (stretch.end_ms - stretch.start_ms) * kept // steps
    parts = [
        dataclasses.replace(stretch, end_ms=cut_ms, last_step=restored_step),
        dataclasses.replace(stretch, start_ms=cut_ms, kind=TimeType.ROLLBACK),
    ]
    return [part for part in parts if part.end_ms > part.start_ms]


def _joined(found: list[Stretch]) -> list[Stretch]:
    joined: list[Stretch] = []
    for stretch in found:
        if joined and joined[-1].kind is stretch.kind and joined[-1].end_ms == stretch.start_ms:
            joined[-1] = dataclasses.replace(
                joined[-1], end_ms=stretch.end_ms, last_step=stretch.last_step
            )
        else:
            joined.append(stretch)
    return joined
