"""Whether a world has become slower than it was, where no host is the cause."""

from __future__ import annotations

import dataclasses
import statistics
from collections import deque
from collections.abc import Iterable

from tpujob_coordinator.outliers import Bounds, Persistence, spread_of

#: Windows that make a reference: the fastest stretch of so many is what a job can do.
STRETCH = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """Of a step, what the hosts did for the most part; milliseconds."""

    input: float = 0.0
    gc: float = 0.0
    save: float = 0.0
    wait: float = 0.0  # for the devices, and through them for each other

    @classmethod
    def of(cls, many: Iterable[Parts]) -> Parts:
        """The median of each."""
        rows = [dataclasses.astuple(parts) for parts in many]
        return cls(*(statistics.median(column) for column in zip(*rows, strict=True)))

    def largest_growth(self, before: Parts) -> str:
        """The part that has grown most."""
        now, then = dataclasses.asdict(self), dataclasses.asdict(before)
        return max(now, key=lambda name: float(now[name] - then[name]))


class Pace:
    """Finds the point from which on steps take longer, window by window."""

    def __init__(self, limit: float) -> None:
        self._bounds = Bounds(limit)
        self._stretch: deque[tuple[float, Parts]] = deque(maxlen=STRETCH)
        self._reference_ms, self._spread_ms, self._parts = float("inf"), 0.0, Parts()
        self._lasting = Persistence()
        self.ratio = 1.0
        self.grown = ""  # the part of a step that has grown most

    @property
    def is_slow(self) -> bool:
        """Whether steps take longer than they did, for long enough, and by nobody's fault."""
        return self._lasting.is_raised

    def see(self, step_ms: float, parts: Parts, *, is_a_host: bool) -> None:
        """Take the next window; ``is_a_host``: a single host is the cause, or may be."""
        known_ms = self._reference_ms if self._reference_ms < float("inf") else step_ms
        score = self._bounds.score(step_ms, known_ms, self._spread_ms)
        self.ratio, self.grown = score.ratio, parts.largest_growth(self._parts)
        if is_a_host:
            self._lasting = Persistence()
        else:
            self._lasting.see(score)
        self._stretch.append((step_ms, parts))
        if len(self._stretch) == STRETCH:
            self._learn([each_ms for each_ms, _ in self._stretch])

    def _learn(self, stretch_ms: list[float]) -> None:
        middle_ms = statistics.median(stretch_ms)
        if middle_ms < self._reference_ms:
            self._reference_ms, self._spread_ms = middle_ms, spread_of(stretch_ms)
            self._parts = Parts.of([parts for _, parts in self._stretch])
