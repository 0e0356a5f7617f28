"""Members of a job and the worlds made of them: plain data and pure functions."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tpujob_agent.notices import Notice
from tpujob_agent.protocol import (
    JAX_PORT_SPAN,
    CoordinatorConfig,
    Hello,
    ProcessState,
    Report,
    Run,
)
from tpujob_coordinator.clocks import RoundTrips


class Place(NamedTuple):
    """Where a member sits: slice index, and host index within the slice."""

    slice: int
    host: int


@dataclasses.dataclass(slots=True)
class Member:
    """One agent that has introduced itself. Times in milliseconds since the epoch."""

    hello: Hello
    connection: int | None  # None: the stream is broken
    last_seen_ms: int
    broken_at_ms: int = 0
    report: Report | None = None
    is_leaving: bool = False
    leaves_by_ms: int = 0  # and is killed then
    is_unsure: bool = False  # an order may have been lost with its connection
    ordered_at_ms: int = 0  # when the last Run was sent
    clock_offset_ms: int | None = None  # ours minus theirs, one-way delay included
    clock: RoundTrips = dataclasses.field(default_factory=RoundTrips)  # knows it better
    notice: Notice | None = None  # its node is going to be taken away

    @property
    def place(self) -> Place:
        """Slice and host."""
        return Place(self.hello.slice, self.hello.host)

    @property
    def identity(self) -> dict[str, Any]:
        """Who it is, as the timeline's events say."""
        hello = self.hello
        return {"slice": hello.slice, "host": hello.host, "node": hello.node, "pod": hello.pod}

    @property
    def is_idle(self) -> bool:
        """Whether it is connected and no process of it can be alive."""
        return (
            self.connection is not None
            and not self.is_leaving
            and self.report is not None
            and self.report.state is not ProcessState.RUNNING
        )

    def may_train(self, ordered: int) -> bool:
        """Whether a process of it may run on unheard; ``ordered``: the generation it was told."""
        report = self.report
        is_done = report is not None and report.state is not ProcessState.RUNNING
        is_newest = report is not None and report.generation >= ordered
        return not (self.is_leaving or (is_done and is_newest))

    def notice_at(self, at_ms: int) -> Notice | None:
        """The notice that its loss at this time fulfils; None: it comes without one."""
        return self.notice if self.notice and self.notice.covers(at_ms) else None

    def to_our_clock(self, at_ms: int, now_ms: int) -> int:
        """A time of the member's clock on ours, never in the future nor before 1970."""
        offset_ms = self.clock.offset_ms
        if offset_ms is None:
            offset_ms = self.clock_offset_ms or 0
        return max(0, min(now_ms, at_ms + round(offset_ms)))


@dataclasses.dataclass(frozen=True)
class World:
    """One generation: who is in it, in the order of process ids."""

    generation: int
    places: tuple[Place, ...]
    leader: str  # ip:port of JAX's coordination service
    fence_s: int = 0  # see ``Run.fence_s``

    @functools.cached_property
    def slices(self) -> tuple[int, ...]:
        """Slice indices in order; a slice's position is its dense id."""
        return tuple(sorted({place.slice for place in self.places}))

    @property
    def identity(self) -> dict[str, Any]:
        """Number, hosts, slices and leader, as the timeline's events say."""
        return {
            "generation": self.generation,
            "hosts": len(self.places),
            "slices": list(self.slices),
            "leader": self.leader,
        }

    @functools.cached_property
    def _ids(self) -> dict[Place, int]:
        return {place: number for number, place in enumerate(self.places)}

    def __contains__(self, place: Place) -> bool:
        return place in self._ids

    def run_of(self, place: Place) -> Run:
        """The order that starts this place's process."""
        return Run(
            generation=self.generation,
            process_id=self._ids[place],
            num_processes=len(self.places),
            slice_id=self.slices.index(place.slice),
            num_slices=len(self.slices),
            leader=self.leader,
            fence_s=self.fence_s,
        )


def is_valid_place(config: CoordinatorConfig, place: Place) -> bool:
    """Whether the job has such a slice and host."""
    slices = config.slices + config.spares
    return 0 <= place.slice < slices and 0 <= place.host < config.hosts_per_slice


def places(config: CoordinatorConfig) -> int:
    """Number of agents of the job."""
    return (config.slices + config.spares) * config.hosts_per_slice


def wanted_hosts(config: CoordinatorConfig) -> int:
    """Number of members of a world of the wanted size."""
    return config.slices * config.hosts_per_slice


def world_sizes(config: CoordinatorConfig) -> list[int]:
    """Numbers of slices that a world may have, smallest first; the last one is wanted."""
    smaller = {size for size in config.smaller_worlds if 0 < size < config.slices}
    return [*sorted(smaller), config.slices]


def largest_size(config: CoordinatorConfig, available: int) -> int:
    """The largest world that so many whole slices make; 0: none."""
    return max((size for size in world_sizes(config) if size <= available), default=0)


def whole_slices(config: CoordinatorConfig, places: Iterable[Place]) -> list[int]:
    """Slices of which every host is among ``places``."""
    counts: dict[int, int] = {}
    for place in places:
        counts[place.slice] = counts.get(place.slice, 0) + 1
    return sorted(index for index, count in counts.items() if count == config.hosts_per_slice)


def fence_s(config: CoordinatorConfig, slices: int) -> int:
    """Seconds that a world of so many slices may train alone; 0: no other can be formed then."""
    others = config.slices + config.spares - slices
    return config.fence_s if others >= world_sizes(config)[0] else 0


def choose_slices(
    config: CoordinatorConfig, whole: Iterable[int], previous: World | None, least: int
) -> tuple[int, ...] | None:
    """The slices of the next world: those of the last one first, as their caches are warm."""
    known = set(previous.slices) if previous else set()
    ranked = sorted(whole, key=lambda index: (index not in known, index))
    size = largest_size(config, len(ranked))
    if size < max(1, least):
        return None
    return tuple(sorted(ranked[:size]))


def form_world(
    config: CoordinatorConfig,
    members: Mapping[Place, Member],
    generation: int,
    previous: World | None,
    least: int,
) -> World | None:
    """The next world out of idle members; None while fewer than ``least`` slices are whole."""
    idle = [place for place, member in members.items() if member.is_idle]
    slices = choose_slices(config, whole_slices(config, idle), previous, least)
    if slices is None:
        return None
    return world_of(config, members, generation, [p for p in idle if p.slice in slices])


def world_of(
    config: CoordinatorConfig,
    members: Mapping[Place, Member],
    generation: int,
    places: Iterable[Place],
) -> World:
    """The world of these places under this number; its leader is the lowest place."""
    ordered = tuple(sorted(places))
    port = config.jax_port_base + generation % JAX_PORT_SPAN
    ip = members[ordered[0]].hello.ip
    leader = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
    slices = len({place.slice for place in ordered})
    return World(generation, ordered, leader, fence_s(config, slices))
