"""Whether the workers get on with what is waiting: the ground for the liveness probe."""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Callable, Iterator

#: Far above what a request can take: its timeout, and the longest pause a server asks for.
_STUCK_S = 180.0
_is_working = contextvars.ContextVar("_is_working", default=False)


class Progress:
    """Knows when a worker last got on: it ended a pass, or a request that belongs to one.

    How long a job waits, and how slow the API server is, says nothing about the health of this
    process: a restart would help neither.
    """

    def __init__(self, waiting_s: Callable[[], float]) -> None:
        self._waiting_s = waiting_s
        self._last_s = time.monotonic()

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """Around each pass."""
        _is_working.set(True)
        try:
            yield
        finally:
            _is_working.set(False)
            self.beat()

    def beat(self) -> None:
        """Something has ended."""
        self._last_s = time.monotonic()

    def beat_if_working(self) -> None:
        """Something has ended that perhaps belongs to a pass."""
        if _is_working.get():
            self.beat()

    def fault(self) -> str:
        """What is wrong, for people; empty: nothing."""
        idle_s = time.monotonic() - self._last_s
        if min(idle_s, self._waiting_s()) <= _STUCK_S:
            return ""
        return f"jobs wait, and for {idle_s:.0f} s no worker has made progress"
