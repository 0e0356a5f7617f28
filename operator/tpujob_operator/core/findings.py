"""What the coordinator has found out about the health of the job: a pure fold over its events."""

from __future__ import annotations

import dataclasses
from typing import Any

from tpujob_agent.protocol import EventKind, Finding
from tpujob_operator.core.incidents import shortened
from tpujob_operator.core.observations import FactKind, Observation
from tpujob_operator.core.stored import items, known_fields, known_word

#: Findings kept; a fault that shows on more hosts is not theirs.
NEWEST = 10
_OVER = (
    EventKind.COORDINATOR_STARTED,  # it finds out anew
    EventKind.LOSS,
    EventKind.GENERATION_LEFT,
    EventKind.GENERATION_STOPPED,
    EventKind.FINISHED,
    EventKind.GAVE_UP,
    FactKind.ATTEMPT_FAILED,
    FactKind.SUSPENDED,
    FactKind.QUEUED,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """One finding that holds. ``slice`` and ``host`` -1: no single host is meant."""

    at_ms: int
    kind: Finding
    slice: int
    host: int
    node: str
    signal: str
    ratio: float
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class Findings:
    """Findings that hold, oldest first."""

    open: tuple[Found, ...] = ()

    def apply(self, seen: Observation) -> Findings:
        """The findings after one observation."""
        if seen.kind in _OVER:
            return Findings()
        if seen.kind is not EventKind.FINDING:
            return self
        kind = known_word(Finding, seen.data["finding"], None)
        if kind is None:
            return self  # a newer coordinator may find more
        found = _found(kind, seen)
        key = (found.kind, found.slice, found.host)
        others = [item for item in self.open if (item.kind, item.slice, item.host) != key]
        held = [*others, found] if seen.data["isOpen"] else others
        return Findings(tuple(held[-NEWEST:]))

    def to_json(self) -> list[dict[str, Any]]:
        """JSON objects from which ``from_json`` makes equal findings."""
        return [dataclasses.asdict(found) | {"kind": found.kind.value} for found in self.open]

    @classmethod
    def from_json(cls, raw: object) -> Findings:
        """Inverse of ``to_json``; findings that only other versions know are left out."""
        found = (
            Found(**known_fields(Found, item) | {"kind": kind})
            for item in items(raw)
            if (kind := known_word(Finding, item["kind"], None))
        )
        return cls(tuple(found))


def _found(kind: Finding, seen: Observation) -> Found:
    data = seen.data
    return Found(
        at_ms=seen.at_ms,
        kind=kind,
        slice=int(data["slice"]),
        host=int(data["host"]),
        node=str(data["node"]),
        signal=str(data["signal"]),
        ratio=float(data["ratio"]),
        message=shortened(str(data["message"])),
    )
