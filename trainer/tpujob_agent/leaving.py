"""SIGTERM has reached the pod: what time is left, and who is to have the trainer save."""

from __future__ import annotations

import time

from tpujob_agent.protocol import Leaving
from tpujob_agent.trainer import now_ms

#: Of the grace period: what the end of a trainer and the last words may take.
LAST_S = 3.0
#: A coordinator that is away for longer will not have the trainers save in time.
AWAY_S = 2.0


class Departure:
    """The grace period, from SIGTERM on."""

    def __init__(self, grace_s: float) -> None:
        self._ends_s = time.monotonic() + grace_s

    @property
    def is_over(self) -> bool:
        """Whether the trainer gets no more time to save and exit by itself."""
        return time.monotonic() >= self._ends_s - LAST_S

    def message(self) -> Leaving:
        """What the coordinator has to know."""
        left_s = max(0.0, self._ends_s - time.monotonic())
        return Leaving(now_ms(), round(left_s * 1000))
