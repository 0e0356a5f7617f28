"""Worlds smaller than wanted: when one is formed, and when it grows again.

A world of the last one's size is formed at once; for a smaller one the loss must be
older than the replacement timeout. A smaller world grows at a checkpoint made for it:
everybody saves at one step and leaves. Programs that do not obey such orders grow at
their next loss.
"""

from __future__ import annotations

from collections.abc import Mapping

from tpujob_agent.protocol import CoordinatorConfig, Save
from tpujob_coordinator import farewell, membership
from tpujob_coordinator.membership import Member, Place, World
from tpujob_coordinator.progress import Progress

#: Growing costs a save and a start: slices that come one by one are not taken one by one.
PAUSE_MS = 300_000


def least_slices(config: CoordinatorConfig, last_size: int, missing_ms: int) -> int:
    """The fewest slices that the next world may have now.

    Args:
        config: the sizes allowed, and the patience.
        last_size: slices of the last world; 0: there was none.
        missing_ms: milliseconds since it was lost, or since the coordinator began.
    """
    sizes = membership.world_sizes(config)
    if missing_ms >= config.replacement_timeout_ms:
        return sizes[0]
    return last_size or config.slices


def size_to_grow_to(
    config: CoordinatorConfig, world: World, members: Mapping[Place, Member]
) -> int:
    """Slices that the next world would have; not above the present number: nothing to gain."""
    if len(world.slices) >= config.slices:
        return len(world.slices)
    idle = (place for place, m in members.items() if m.is_idle and place not in world)
    reachable = len(world.slices) + len(membership.whole_slices(config, idle))
    return membership.largest_size(config, reachable) or len(world.slices)


def save_before_growing(
    world: World, progress: Progress, members: Mapping[Place, Member], now_ms: int
) -> Save | None:
    """The save after which the world is formed larger; None: not now, or never."""
    if progress.finished:
        return None
    return farewell.save_ahead(world, progress, members, now_ms, then_leave=True)
