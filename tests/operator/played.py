"""A coordinator as tests play it: it answers what it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web


class Server:
    """A coordinator that answers as it is told, one answer per request, then waits."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.requests: asyncio.Queue[web.Request] = asyncio.Queue()
        self.bodies: list[Any] = []
        self.streams: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
        self.port = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        if request.can_read_body:
            self.bodies.append(await request.json())
        self.requests.put_nowait(request)
        if self.streams:
            return await self.streams(request)
        answer = await self.answers.get()
        if isinstance(answer, int):
            return web.Response(status=answer)
        if isinstance(answer, web.StreamResponse):
            return answer
        return web.json_response(answer)
