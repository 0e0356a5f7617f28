"""Running several things at once that belong together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def first_end(*parts: Coroutine[Any, Any, Any] | asyncio.Task[Any]) -> None:
    """Run all parts until the first one ends, and raise what ended it; the others are cancelled.

    Tasks that were given as such are left to the caller.
    """
    own = [asyncio.create_task(part) for part in parts if asyncio.iscoroutine(part)]
    given = [part for part in parts if isinstance(part, asyncio.Task)]
    try:
        done, _ = await asyncio.wait([*own, *given], return_when=asyncio.FIRST_COMPLETED)
        for part in done:
            part.result()  # raises what ended it
    finally:
        for part in own:
            part.cancel()
        await asyncio.gather(*own, return_exceptions=True)


async def drain(tasks: Iterable[asyncio.Task[Any]], limit_s: float) -> None:
    """Let tasks end by themselves for some time, and cancel those that do not."""
    tasks = list(tasks)
    await asyncio.wait(tasks, timeout=limit_s)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
