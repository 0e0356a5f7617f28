"""Keeps what is known of one kind in step with the API server: a listing, a watch, and again.

A listing tells what there is, so whatever it lacks is gone. The watch goes on from there. When it
cannot (410 Gone, or it has been going for long enough), the next listing finds what was missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import random
import time
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from tpujob_operator.core.kinds import Kind
from tpujob_operator.shell.client import ApiError, Client
from tpujob_operator.shell.stream import WatchEvent, watch

_log = logging.getLogger(__name__)
#: Bookmarks come about every 60 s, and the API server remembers 75 s of events at least.
STALL_S = 70.0
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.2, 10.0
#: Seconds between two looks for a kind that is not served.
_NOT_SERVED_S = 5.0
#: A watch that ends sooner is none.
_SHORTEST_WATCH_S = 1.0
_GONE, _TOO_MANY = 410, 429
_UNREADABLE = (AttributeError, KeyError, RecursionError, TypeError, ValueError)


class Store(Protocol):
    """What a reflector feeds; see ``Cache``."""

    def put(self, kind: Kind, obj: Mapping[str, Any], listed_at: float = 0) -> bool:
        """Take an object in, unless it is known as new."""

    def remove(self, kind: Kind, obj: Mapping[str, Any]) -> None:
        """Forget an object."""

    def prune(
        self, kind: Kind, namespace: str | None, listed: Collection[str], listed_at: float
    ) -> int:
        """Forget what a listing lacks."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scope:
    """What a reflector looks at: a kind, in one namespace or in all, with these labels."""

    kind: Kind
    namespace: str | None = None
    selector: str = ""

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.kind.plural}{where}"


class Reflector:
    """Feeds a store with one kind, for ever; nothing that the API server does ends it."""

    def __init__(
        self,
        client: Client,
        scope: Scope,
        store: Store,
        *,
        relist_s: float,
        stall_s: float = STALL_S,
    ) -> None:
        self._client = client
        self._scope = scope
        self._store = store
        self._relist_s = relist_s
        self._stall_s = stall_s
        self._version = 0  # what has happened up to it is known
        self._due_at = -math.inf  # of the next listing
        self._heard_at = time.monotonic()
        self._failures = 0
        self._asked = asyncio.Event()
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def age_s(self) -> float:
        """Seconds since the API server was last heard of this kind."""
        return time.monotonic() - self._heard_at

    async def relist(self) -> None:
        """Wait for a listing that begins after this call, however often it has to be tried."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._asked.set()
        await waiter

    async def run(self) -> None:
        """List and watch for ever."""
        while True:
            try:
                delay_s = await self._round()
            except (ApiError, *_UNREADABLE) as error:
                delay_s = self._delay_s(error)
            await asyncio.sleep(delay_s)

    async def _round(self) -> float:
        """One listing if it is due, and one watch; returns how long to wait then."""
        if self._asked.is_set() or time.monotonic() >= self._due_at:
            await self._list()
        began = time.monotonic()
        await self._watch_until_asked()
        if time.monotonic() - began < _SHORTEST_WATCH_S and not self._asked.is_set():
            self._failures += 1
            return self._backoff_s()
        self._failures = 0
        return 0.0

    # ---- listings

    async def _list(self) -> None:
        self._asked.clear()
        waiters, self._waiters = self._waiters, []
        try:
            await self._take_listing()
        except BaseException:
            self._waiters += waiters
            self._asked.set()
            raise
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _take_listing(self) -> None:
        kind, namespace = self._scope.kind, self._scope.namespace
        listed: set[str] = set()
        version, listed_at = 0, math.inf
        try:
            async for page, version in self._client.pages(kind, namespace, self._scope.selector):
                # A cluster that is restored from a backup counts from an earlier version on.
                listed_at = math.inf if version < self._version else version
                listed.update(obj["metadata"]["uid"] for obj in page)
                for obj in page:
                    self._put(obj, listed_at)
        except ApiError as error:
            if not error.is_not_found:
                raise
            _log.warning("%s is not served by the API server (yet)", self._scope)
        if 0 < version < self._version:
            _log.warning("the versions of %s have fallen: all are taken as listed", self._scope)
        self._store.prune(kind, namespace, listed, listed_at)
        self._version = version
        self._heard_at = time.monotonic()
        wait_s = self._relist_s * random.uniform(0.8, 1.2) if version else _NOT_SERVED_S  # noqa: S311 - jitter
        self._due_at = time.monotonic() + wait_s

    # ---- watches

    async def _watch_until_asked(self) -> None:
        """Watch until the next listing is due, or asked for, or the API server ends it."""
        watching = asyncio.ensure_future(self._watch() if self._version else self._pause())
        asked = asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait({watching, asked}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            watching.cancel()
            asked.cancel()
            await asyncio.gather(watching, asked, return_exceptions=True)

    async def _pause(self) -> None:
        await asyncio.sleep(max(0.0, self._due_at - time.monotonic()))

    async def _watch(self) -> None:
        events = watch(
            self._client,
            self._scope.kind,
            self._scope.namespace,
            selector=self._scope.selector,
            version=self._version,
            lasts_s=self._due_at - time.monotonic(),
            stall_s=self._stall_s,
        )
        async with contextlib.aclosing(events):
            async for event in events:
                self._take(event)

    def _take(self, event: WatchEvent) -> None:
        version = int(event.obj["metadata"]["resourceVersion"])
        if version < self._version:
            raise ApiError(_GONE, "the versions have fallen")
        self._heard_at, self._version = time.monotonic(), version
        head = {"apiVersion": self._scope.kind.api_version, "kind": self._scope.kind.kind}
        if event.type == "DELETED":
            self._remove({**event.obj, **head})
        elif event.type != "BOOKMARK":
            self._put({**event.obj, **head}, 0)

    def _put(self, obj: Mapping[str, Any], listed_at: float) -> None:
        try:
            self._store.put(self._scope.kind, obj, listed_at)
        except _UNREADABLE:
            # One object that is not as expected must not hide the others.
            _log.exception("%s %s cannot be read", self._scope, obj["metadata"].get("name"))

    def _remove(self, obj: Mapping[str, Any]) -> None:
        try:
            self._store.remove(self._scope.kind, obj)
        except _UNREADABLE:
            _log.exception("%s %s cannot be read", self._scope, obj["metadata"].get("name"))
            self._due_at = -math.inf

    # ---- failures

    def _delay_s(self, error: Exception) -> float:
        """How long to wait after a failure; a watch that is refused makes a listing due."""
        code = error.code if isinstance(error, ApiError) else 0
        if 400 <= code < 500 and code != _TOO_MANY:
            self._due_at = -math.inf
        if code != _GONE:
            _log.warning("%s: %r", self._scope, error)
        self._failures += 1
        asked_s = error.retry_after_s if isinstance(error, ApiError) else 0.0
        return max(asked_s, self._backoff_s())

    def _backoff_s(self) -> float:
        delay_s = min(_LONGEST_RETRY_S, _FIRST_RETRY_S * 2 ** min(self._failures, 12))
        return float(delay_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
