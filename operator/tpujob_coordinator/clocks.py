"""How far a member's clock and network are away, by round trips: pure."""

from __future__ import annotations

import collections

from tpujob_agent.protocol import Pong

#: Round trips that are remembered: clocks drift apart, so that old ones mean nothing.
_KEPT = 32
#: Times are whole milliseconds.
_ROUNDING_MS = 1.0


class RoundTrips:
    """The newest round trips to one member."""

    def __init__(self) -> None:
        self._kept: collections.deque[tuple[int, float]] = collections.deque(maxlen=_KEPT)
        self._best: tuple[int, float] | None = None

    def take(self, pong: Pong, now_ms: int) -> int:
        """Take an answer; returns the milliseconds it took."""
        trip_ms = max(0, now_ms - pong.ping_at_ms)
        self._kept.append((trip_ms, pong.ping_at_ms + trip_ms / 2 - pong.sent_at_ms))
        self._best = min(self._kept)
        return trip_ms

    @property
    def offset_ms(self) -> float | None:
        """Our clock minus theirs, by the fastest round trip; None: there was none."""
        return self._best[1] if self._best else None

    @property
    def error_ms(self) -> float:
        """How wrong the offset may be: nobody knows which way of the trip was the longer one."""
        return self._best[0] / 2 + _ROUNDING_MS if self._best else 0.0
