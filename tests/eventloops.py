"""What an event loop must be rid of before it ends."""

from __future__ import annotations

import asyncio
from typing import Any

_LEAVE_S = 5.0


async def connections_ended() -> None:
    """Wait until no connection of this event loop is left; one whose peer is silent is cut.

    TLS takes its leave in the background, after a session is closed. Sockets that are left are
    found by the garbage collector, in whatever test runs then.
    """
    loop: Any = asyncio.get_running_loop()
    deadline = loop.time() + _LEAVE_S
    while left := [one for one in list(loop._transports.values()) if one._sock is not None]:
        if loop.time() >= deadline:
            for transport in left:
                transport.abort()
        await asyncio.sleep(0.01)


async def others_ended() -> None:
    """Cancel all other tasks of this event loop, and wait for their end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
