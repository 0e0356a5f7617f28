"""Chip-milliseconds: how many chips a job has held, beside the time it was cut into.

A chip is held from the moment a worker pod has a node until that pod is gone, so spares and
pods that wait count as well. Every chip-millisecond is handed out once, with the interval
it falls into; what the operator sees late goes to the interval that is booked next.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tpujob_operator.core.stored import known_fields


@dataclasses.dataclass(frozen=True, slots=True)
class Chips:
    """How many chips are held, and the chip-milliseconds that came of it so far."""

    held: int = 0
    since_ms: int = 0
    total: int = 0  # chip-milliseconds up to ``since_ms``
    taken: int = 0  # of them and later ones, handed out

    def hold(self, number: int, at_ms: int) -> Chips:
        """The same when so many chips are held from ``at_ms`` on."""
        at_ms = max(at_ms, self.since_ms)
        return Chips(number, at_ms, self._total_at(at_ms), self.taken)

    def open(self, at_ms: int) -> int:
        """Chip-milliseconds up to ``at_ms`` that are not handed out yet."""
        return max(0, self._total_at(at_ms) - self.taken)

    def take(self, at_ms: int) -> tuple[int, Chips]:
        """Hand out what is open at ``at_ms``."""
        amount = self.open(at_ms)
        return amount, dataclasses.replace(self, taken=self.taken + amount)

    def _total_at(self, at_ms: int) -> int:
        return self.total + self.held * max(0, at_ms - self.since_ms)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Chips:
        """Inverse of ``dataclasses.asdict``; keys of other versions are ignored."""
        return cls(**known_fields(cls, raw))
