"""The operator's clocks: one for dates, and one for what lasts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

_NS_PER_MS = 1_000_000


def wall_ms() -> int:
    """Milliseconds since the epoch, for what other machines compare with their own clocks."""
    return time.time_ns() // _NS_PER_MS


@dataclasses.dataclass(frozen=True, slots=True)
class Moment:
    """One moment by both clocks."""

    wall_ms: int  # since the epoch, as other machines and later operators understand it
    steady_ms: int  # runs evenly, whoever sets the machine's clock; means nothing elsewhere

    def on_wall(self, steady_ms: int) -> int:
        """What the wall clock would show now had it been right at ``steady_ms``; 0: never."""
        return steady_ms and self.wall_ms - (self.steady_ms - steady_ms)


class Clock:
    """Tells both times.

    How long this process has seen something is counted by the steady time: a machine's clock that
    is set, forwards or back, must neither fire such a deadline nor hold it up.
    """

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns, self._monotonic_ns = wall_ns, monotonic_ns
        # Far from 0, which stands for never.
        self._offset_ns = wall_ns() - monotonic_ns()

    def now(self) -> Moment:
        """This moment."""
        return Moment(self._wall_ns() // _NS_PER_MS, self.steady_ms())

    def steady_ms(self) -> int:
        """The steady time of this moment."""
        return (self._monotonic_ns() + self._offset_ns) // _NS_PER_MS
