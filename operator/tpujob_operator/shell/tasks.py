"""Running several things at once that belong together."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable
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


async def in_own_loop(
    make: Callable[[asyncio.Event], Coroutine[Any, Any, None]],
    stop: asyncio.Event,
    limit_s: float = 10.0,
) -> None:
    """Run a coroutine in a thread that has an event loop of its own, and raise what ends it.

    ``make`` gets the event of that loop that asks the coroutine to end; it follows ``stop``. Then
    the coroutine has ``limit_s`` seconds.
    """
    outer = asyncio.get_running_loop()
    began: asyncio.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = outer.create_future()
    ended: asyncio.Future[None] = outer.create_future()

    async def main() -> None:
        inner_stop = asyncio.Event()
        outer.call_soon_threadsafe(began.set_result, (asyncio.get_running_loop(), inner_stop))
        await make(inner_stop)

    def run() -> None:
        error: BaseException | None = None
        try:
            asyncio.run(main())
        except BaseException as raised:  # noqa: BLE001 - handed over
            error = raised
        with contextlib.suppress(RuntimeError):  # nobody waits any more
            outer.call_soon_threadsafe(_settle, ended, error)

    threading.Thread(target=run, name="own loop", daemon=True).start()
    inner, inner_stop = await began
    stopping = asyncio.create_task(stop.wait())
    try:
        both: set[asyncio.Future[Any]] = {stopping, ended}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            inner.call_soon_threadsafe(inner_stop.set)
            await asyncio.wait({ended}, timeout=limit_s)
        if ended.done():  # or else the thread is left behind, and ends with the process
            ended.result()
    finally:
        stopping.cancel()


def _settle(ended: asyncio.Future[None], error: BaseException | None) -> None:
    if ended.done():  # who waited was cancelled
        return
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
