"""A queue of keys: every key at most once, one worker per key at a time, with delays.

The semantics are those of client-go's work queue: a key that is added while a
worker holds it is handed out again once the worker is done, so no change is
ever missed and none is handled by two workers at once.
"""

import asyncio
import collections
import time
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class QueueClosedError(Exception):
    """No more keys are handed out."""


class KeyedQueue(Generic[K]):
    """Coalescing queue; all methods must be called from the event loop's thread."""

    def __init__(self) -> None:
        self._ready: collections.OrderedDict[K, float] = collections.OrderedDict()
        self._held: set[K] = set()
        self._again: dict[K, float] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._arrived = asyncio.Event()
        self._is_closed = False

    def add(self, key: K) -> None:
        """Ask for ``key`` to be handled as soon as a worker is free."""
        since = time.monotonic()
        if key in self._held:
            self._again.setdefault(key, since)
            return
        self._ready.setdefault(key, since)
        self._arrived.set()

    def add_after(self, key: K, delay_s: float) -> None:
        """Ask for ``key`` to be handled in ``delay_s`` seconds; an earlier request wins."""
        if delay_s <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= loop.time() + delay_s:
            return
        self._cancel_timer(key)
        self._timers[key] = loop.call_later(delay_s, self._fire, key)

    async def get(self) -> K:
        """Wait for a key and hold it; the caller must call ``done`` with it.

        Raises:
            QueueClosedError: the queue is closed.
        """
        while not self._ready and not self._is_closed:
            self._arrived.clear()
            await self._arrived.wait()
        if self._is_closed:
            raise QueueClosedError
        key, _ = self._ready.popitem(last=False)
        self._held.add(key)
        # The pass that starts now sees everything; it asks for its own next time.
        self._cancel_timer(key)
        return key

    def done(self, key: K) -> None:
        """Release a key; it becomes ready again if it was added meanwhile."""
        self._held.discard(key)
        since = self._again.pop(key, None)
        if since is not None:
            self._ready.setdefault(key, since)
            self._arrived.set()

    def close(self) -> None:
        """Hand out no more keys; those that are held stay held until they are done."""
        self._is_closed = True
        self._arrived.set()

    def forget(self, key: K) -> None:
        """Drop a delayed request, because the object is gone."""
        self._cancel_timer(key)

    @property
    def depth(self) -> int:
        """Keys that wait for a worker."""
        return len(self._ready) + len(self._again)

    @property
    def oldest_age_s(self) -> float:
        """Seconds the longest-waiting key has waited; 0 for an empty queue."""
        waiting = [*self._ready.values(), *self._again.values()]
        return time.monotonic() - min(waiting) if waiting else 0.0

    def _fire(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _cancel_timer(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
