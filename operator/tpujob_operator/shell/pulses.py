"""Looks at nodes that may be gone: their object, and the lease of their kubelet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from tpujob_operator.core.kinds import LEASE, NODE, NODE_LEASE_NAMESPACE
from tpujob_operator.core.nodes import Pulse, take_pulse
from tpujob_operator.shell.client import ApiError, Client

_log = logging.getLogger(__name__)
#: Jobs that have pods on the same node share a look at it.
_SHARED_MS = 1_000
_MOST_AT_ONCE = 8
_FORGET_MS = 600_000


class Pulses:
    """Remembers what was found, because only silence over some time is a proof."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._found: dict[str, tuple[int, Pulse]] = {}
        self._turn = asyncio.Semaphore(_MOST_AT_ONCE)

    async def take(self, names: Iterable[str], now_ms: int) -> Mapping[str, Pulse]:
        """The pulses of these nodes, but for those that could not be looked at."""
        wanted = set(names)
        await asyncio.gather(*(self._look(name, now_ms) for name in wanted))
        for name in [name for name, found in self._found.items() if found[0] < now_ms - _FORGET_MS]:
            del self._found[name]
        found = {name: self._found[name] for name in wanted & self._found.keys()}
        return {
            name: pulse for name, (at_ms, pulse) in found.items() if now_ms - at_ms < _SHARED_MS
        }

    async def _look(self, name: str, now_ms: int) -> None:
        looked_ms, before = self._found.get(name, (0, None))
        if now_ms - looked_ms < _SHARED_MS:
            return
        async with self._turn:
            try:
                node = await self._client.get(NODE, None, name)
                lease = await self._client.get(LEASE, NODE_LEASE_NAMESPACE, name) if node else None
            except ApiError as error:
                _log.warning("node %s cannot be looked at: %s", name, error.message)
                return
        self._found[name] = (now_ms, take_pulse(before, node, lease, now_ms))
