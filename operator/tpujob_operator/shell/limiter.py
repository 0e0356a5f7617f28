"""When the next request may be sent: not too often, and not while the server asks for a pause."""

from __future__ import annotations

import asyncio
import random
import time

#: No answer; too many requests; the server cannot serve. A 500 may be one object's webhook.
OUTAGE_CODES = (0, 429, 503)
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
#: One request in a row may fail for reasons of its own, such as a webhook that hangs.
_TOLERATED = 1


class Limiter:
    """A token bucket and a common pause for all requests of a client.

    Args:
        per_s: requests a second in the long run.
        burst: requests that may be sent at once after a quiet time.
    """

    def __init__(self, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = burst
        self._full_at_s = 0.0  # when the bucket is full again if nothing more is sent
        self._paused_until_s = 0.0
        self._failures = 0

    async def wait(self) -> None:
        """Wait until a request may be sent."""
        await asyncio.sleep(self.reserve_s(time.monotonic()))
        while True:
            pause_s = self.pause_s(time.monotonic())
            if not pause_s:
                return
            await asyncio.sleep(pause_s)

    def reserve_s(self, now_s: float) -> float:
        """Take one token, perhaps one of the future; seconds until it is there."""
        token_s = 1 / self._per_s
        self._full_at_s = max(self._full_at_s, now_s) + token_s
        return max(0.0, self._full_at_s - now_s - self._burst * token_s)

    def pause_s(self, now_s: float) -> float:
        """Seconds until requests may be sent again."""
        return max(0.0, self._paused_until_s - now_s)

    def answered(self, code: int, retry_after_s: float, sent_s: float, now_s: float) -> None:
        """Take in how a request went: a server in trouble gets a pause that grows."""
        if code not in OUTAGE_CODES:
            self._failures = 0
            return
        if sent_s >= self._paused_until_s:  # requests of before the pause say nothing new
            self._failures += 1
        pause_s = max(retry_after_s, self._pause_after_failures_s())
        self._paused_until_s = max(self._paused_until_s, now_s + pause_s)

    def _pause_after_failures_s(self) -> float:
        if self._failures <= _TOLERATED:
            return 0.0
        exponent = min(self._failures - _TOLERATED - 1, 10)
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**exponent)
        return pause_s * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
