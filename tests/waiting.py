"""Waiting for conditions: no test sleeps for a time and hopes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

#: No test waits this long when all is well. A loaded machine takes its time, and the garbage
#: collector learns of a new kind only every 30 s.
PATIENCE_S = 120.0
_T = TypeVar("_T")


def wait_until(
    condition: Callable[[], _T | None],
    what: str,
    limit_s: float = PATIENCE_S,
    period_s: float = 0.02,
) -> _T:
    """Poll until the condition gives something true, which is returned."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(period_s)
    raise AssertionError(f"not within {limit_s:.0f} s: {what}")


async def until(condition: Callable[[], Any], what: str) -> Any:
    """The same inside an event loop; the condition may be a coroutine function."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = condition()
                if isinstance(found, Awaitable):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {PATIENCE_S:.0f} s: {what}") from None
