"""Trainers that may still run though their agents are not heard: no second world beside them.

A world of which one process is known to be gone makes no steps any more. But a world
none of whose hosts can be heard may be whole and training, behind a broken network or
after this coordinator's restart. Its agents stop it when they have been alone for the
time in ``Run.fence_s``; for so long no other world is formed.
"""

from __future__ import annotations

from collections.abc import Iterable

from tpujob_agent.protocol import FENCE_S, CoordinatorConfig
from tpujob_coordinator import membership
from tpujob_coordinator.membership import Place, World

#: An agent notices a cut connection this late, and its trainer takes a moment to die.
_MARGIN_MS = 15_000
#: The longest that a world is not formed because another one may be training.
HELD_S = FENCE_S + _MARGIN_MS / 1000


class Unseen:
    """Places whose trainer may be running though nobody hears of it."""

    def __init__(self, config: CoordinatorConfig, now_ms: int) -> None:
        self._config = config
        slices = range(config.slices + config.spares)
        places = [Place(s, h) for s in slices for h in range(config.hosts_per_slice)]
        self._until_ms = dict.fromkeys(places, self._fenced_at(now_ms))

    def _fenced_at(self, heard_ms: int) -> int:
        return heard_ms + self._config.fence_s * 1000 + _MARGIN_MS

    def heard(self, place: Place) -> None:
        """A place's agent speaks: it tells itself what runs there."""
        self._until_ms.pop(place, None)

    def lost(self, place: Place, heard_ms: int) -> None:
        """A place's agent was last heard then, and its trainer was running."""
        self._until_ms[place] = self._fenced_at(heard_ms)

    def may_train(self, world: World | None, now_ms: int) -> bool:
        """Whether the last world may be whole; None: there may be one that is not known."""
        places = [place for place, until_ms in self._until_ms.items() if now_ms < until_ms]
        if world:
            return set(places).issuperset(world.places)
        return _has_world(self._config, places)


def _has_world(config: CoordinatorConfig, places: Iterable[Place]) -> bool:
    """Whether a world could be running on these places alone."""
    whole = membership.whole_slices(config, places)
    return len(whole) >= membership.world_sizes(config)[0]
