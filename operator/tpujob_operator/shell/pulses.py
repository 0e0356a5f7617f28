"""Looks at nodes that may be gone: their object, and the lease of their kubelet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from tpujob_operator.core.kinds import LEASE, NODE, NODE_LEASE_NAMESPACE
from tpujob_operator.core.nodes import Pulse, take_pulse, zone_of
from tpujob_operator.shell.client import ApiError, Client

_log = logging.getLogger(__name__)
#: Jobs that have pods on the same node share a look at it.
_SHARED_MS = 1_000
_MOST_AT_ONCE = 8
#: All nodes together: the more of them are in doubt, the more seldom each is looked at.
_MOST_PER_S = 20
_FORGET_MS = 600_000
#: Nodes that nobody has asked about for so long are in doubt no more.
_DOUBT_MS = 60_000


class Pulses:
    """Remembers what was found, because only silence over some time is a proof."""

    def __init__(
        self, client: Client, is_mass_outage: Callable[[str], bool] = lambda _: False
    ) -> None:
        """``is_mass_outage``: whether most nodes of a zone, or of all, are not Ready."""
        self._client = client
        self._is_mass_outage = is_mass_outage
        self._outages: set[str] = set()  # zones
        self._found: dict[str, tuple[int, Pulse]] = {}
        self._tried: dict[str, int] = {}  # when each was looked at last, with success or without
        self._asked: dict[str, int] = {}  # when somebody asked about it last
        self._turn = asyncio.Semaphore(_MOST_AT_ONCE)

    async def take(self, names: Iterable[str], now_ms: int) -> Mapping[str, Pulse]:
        """The pulses of these nodes, but for those that could not, or may not yet, be looked at.

        ``now_ms`` and the times of pulses are steady ones; see ``clock.Clock``.
        """
        wanted = set(names)
        self._note(wanted, now_ms)
        await asyncio.gather(*(self._look(name, now_ms) for name in self._due(wanted, now_ms)))
        found = {name: self._found[name] for name in wanted & self._found.keys()}
        return {
            name: pulse for name, (at_ms, pulse) in found.items() if now_ms - at_ms < _SHARED_MS
        }

    def _note(self, wanted: Iterable[str], now_ms: int) -> None:
        self._asked |= dict.fromkeys(wanted, now_ms)
        for name in [name for name, at in self._asked.items() if at < now_ms - _DOUBT_MS]:
            del self._asked[name]
        for name in [name for name, at in self._tried.items() if at < now_ms - _FORGET_MS]:
            del self._tried[name]
            self._found.pop(name, None)

    def _due(self, wanted: Iterable[str], now_ms: int) -> list[str]:
        """Nodes whose turn it is, which are looked at by this call alone."""
        interval_ms = max(_SHARED_MS, 1_000 * len(self._asked) // _MOST_PER_S)
        due = [name for name in wanted if now_ms - self._tried.get(name, 0) >= interval_ms]
        self._tried |= dict.fromkeys(due, now_ms)
        return due

    async def _look(self, name: str, now_ms: int) -> None:
        async with self._turn:
            try:
                node = await self._client.get(NODE, None, name)
                lease = await self._client.get(LEASE, NODE_LEASE_NAMESPACE, name) if node else None
            except ApiError as error:
                _log.warning("node %s cannot be looked at: %s", name, error.message)
                return
        before = self._found[name][1] if name in self._found else None
        is_outage = node is not None and self._is_outage(zone_of(node))
        pulse = take_pulse(before, node, lease, now_ms, is_outage=is_outage)
        self._found[name] = (now_ms, pulse)

    def _is_outage(self, zone: str) -> bool:
        """Whether most nodes of a zone are not Ready; its beginning and end are logged."""
        is_outage, where = self._is_mass_outage(zone), f" (zone {zone}, or all)" if zone else ""
        if is_outage and zone not in self._outages:
            _log.warning(
                "most TPU nodes are not Ready at once%s: none of them is taken for dead until that "
                "is over. Look at the network between nodes and control plane", where,
            )  # fmt: skip
            self._outages.add(zone)
        if zone in self._outages and not is_outage:
            _log.warning("most TPU nodes are Ready again%s", where)
            self._outages.discard(zone)
        return is_outage
