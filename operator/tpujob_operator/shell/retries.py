"""How long to wait before the next try, and trying until it works."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tpujob_operator.shell.client import ApiError

_log = logging.getLogger(__name__)
_FIRST_S = 0.5
_LONGEST_S = 10.0
_MOST_DOUBLINGS = 12
_T = TypeVar("_T")


def backoff_s(failures: int, first_s: float, longest_s: float) -> float:
    """Seconds to wait after some failures in a row: doubled each time, with jitter."""
    delay_s = min(longest_s, first_s * 2.0 ** min(failures, _MOST_DOUBLINGS))
    return delay_s * random.uniform(0.8, 1.2)  # noqa: S311 - jitter


async def keep_trying(what: str, ask: Callable[[], Awaitable[_T]]) -> _T:
    """Ask the API server for as long as it takes; return its answer."""
    for failures in itertools.count():
        try:
            return await ask()
        except ApiError as error:
            delay_s = max(error.retry_after_s, backoff_s(failures, _FIRST_S, _LONGEST_S))
            _log.warning("%s failed, next try in %.1f s: %s", what, delay_s, error.message)
        await asyncio.sleep(delay_s)
    raise AssertionError("never ends")
