"""The job's story: bounded, numbered, in order of time."""

from __future__ import annotations

import bisect
import collections
import json
import math
from collections.abc import Iterable
from typing import Any

from tpujob_agent.protocol import Event, EventKind

#: Events kept; at one event a second this is more than five hours unread.
KEPT_EVENTS = 20_000
#: And so many bytes of them, as JSON: a program that lies to its coordinator fills no more.
KEPT_BYTES = 16 << 20
#: Events of one answer, and their bytes.
ANSWER_EVENTS, ANSWER_BYTES = 1_000, 1 << 20
#: Losses kept, newest first to stay.
KEPT_LOSSES = 100_000


class Timeline:
    """Append-only events of one coordinator process (its epoch)."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self._events: collections.deque[Event] = collections.deque()
        self._sizes: collections.deque[int] = collections.deque()  # of them
        self._size = 0  # of all of them
        self.last = 0  # number of the newest event
        self.last_at_ms = 0

    def append(self, at_ms: int, kind: EventKind, data: dict[str, Any]) -> Event:
        """Add an event; times never decrease, as readers fold in order of time."""
        self.last += 1
        self.last_at_ms = max(self.last_at_ms, at_ms)
        event = Event(self.last, self.last_at_ms, kind, data)
        self._events.append(event)
        self._sizes.append(len(json.dumps(event.to_json())))
        self._size += self._sizes[-1]
        while len(self._events) > 1 and self._is_full():
            self._events.popleft()
            self._size -= self._sizes.popleft()
        return event

    def _is_full(self) -> bool:
        return len(self._events) > KEPT_EVENTS or self._size > KEPT_BYTES

    def after(
        self, seq: int, limit: int = ANSWER_EVENTS, most_bytes: int = ANSWER_BYTES
    ) -> list[Event]:
        """Events numbered above ``seq``, oldest first: at least one if there is any.

        Args:
            seq: number of the last event that the reader knows.
            limit: most events.
            most_bytes: most bytes of them as JSON; the first one may have more.
        """
        if not self._events or seq >= self.last:
            return []
        found: list[Event] = []
        skip = max(0, seq + 1 - self._events[0].seq)
        for number in range(skip, min(len(self._events), skip + limit)):
            most_bytes -= self._sizes[number]
            if found and most_bytes < 0:
                break
            found.append(self._events[number])
        return found


class LossSeries:
    """The newest known loss of every step; a step that is done again replaces its loss."""

    def __init__(self) -> None:
        self._steps: list[int] = []  # sorted
        self._losses: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, pairs: Iterable[Iterable[float]]) -> None:
        """Take ``[step, loss]`` pairs in any order."""
        for step_number, loss in pairs:
            step = int(step_number)
            if step not in self._losses:
                bisect.insort(self._steps, step)
            self._losses[step] = float(loss)
        while len(self._steps) > KEPT_LOSSES:
            del self._losses[self._steps.pop(0)]

    def after(self, step: int) -> list[list[float | None]]:
        """``[step, loss]`` pairs above ``step``; null for a loss that is no number in JSON."""
        first = bisect.bisect_right(self._steps, step)
        return [[s, finite(self._losses[s])] for s in self._steps[first:]]

    def up_to(self, step: int) -> float | None:
        """Loss of the highest step that is not above ``step``."""
        place = bisect.bisect_right(self._steps, step)
        return finite(self._losses[self._steps[place - 1]]) if place else None


def finite(value: float) -> float | None:
    """The number, or None where JSON has none for it."""
    return value if math.isfinite(value) else None
