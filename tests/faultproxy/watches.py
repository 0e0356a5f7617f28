"""One watch: events from the API server to the operator, late, together, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Callable

import aiohttp
from aiohttp import web

from tests.faultproxy.calls import Object
from tests.faultproxy.faults import EventFault


@dataclasses.dataclass(slots=True)
class Weather:
    """What holds for all watches at the moment."""

    thawed: asyncio.Event
    coalesce_s: float = 0.0


class Relay:
    """Hands the events of one upstream watch on until either side ends it."""

    def __init__(self, weather: Weather, judge: Callable[[Object], EventFault | None]) -> None:
        self._weather = weather
        self._judge = judge
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()  # an empty one: the end
        self._closed = asyncio.Event()

    def close(self) -> None:
        """End the watch as an API server does that has had enough of it."""
        self._closed.set()

    async def run(self, upstream: aiohttp.ClientResponse, down: web.StreamResponse) -> None:
        """Relay until the end."""
        tasks = [
            asyncio.create_task(self._read(upstream)),
            asyncio.create_task(self._write(down)),
            asyncio.create_task(self._closed.wait()),
        ]
        try:
            await asyncio.wait(tasks[1:], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, upstream: aiohttp.ClientResponse) -> None:
        try:
            with contextlib.suppress(aiohttp.ClientError):
                async for line in lines(upstream):
                    self._lines.put_nowait(line)
        finally:
            self._lines.put_nowait(b"")

    async def _write(self, down: web.StreamResponse) -> None:
        while (batch := await self._batch()) is not None:
            await self._weather.thawed.wait()
            for line in batch:
                fault = self._judge(json.loads(line))
                if fault in (EventFault.EXPIRE, EventFault.CLOSE):
                    return
                if fault is None:
                    await down.write(line)

    async def _batch(self) -> list[bytes] | None:
        """The next events: one, or the last of each object in a while; None: there are no more."""
        first = await self._lines.get()
        if not first:
            return None
        if not self._weather.coalesce_s:
            return [first]
        await asyncio.sleep(self._weather.coalesce_s)
        batch = [first]
        while not self._lines.empty():
            batch.append(self._lines.get_nowait())
        if not batch[-1]:
            self._lines.put_nowait(batch.pop())
        return coalesced(batch)


def coalesced(batch: list[bytes]) -> list[bytes]:
    """Only the last event of each object, unless the object came and went in between."""
    last: dict[str, bytes] = {}
    born: set[str] = set()
    for line in batch:
        event = json.loads(line)
        uid = event["object"].get("metadata", {}).get("uid", "")
        if event["type"] == "ADDED":
            born.add(uid)
        last.pop(uid, None)
        last[uid] = _as_added(event) if uid in born and event["type"] == "MODIFIED" else line
        if event["type"] == "DELETED" and uid in born:
            del last[uid]
    return list(last.values())


def _as_added(event: Object) -> bytes:
    return json.dumps({**event, "type": "ADDED"}).encode() + b"\n"


async def lines(upstream: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Lines of any length, each with its end."""
    rest = b""
    async for chunk in upstream.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line + b"\n"
