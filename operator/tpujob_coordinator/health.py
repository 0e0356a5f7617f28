"""The health of one generation: from reports and pongs to findings with a name and advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tpujob_agent.protocol import CoordinatorConfig, Finding, Ping, Pong, Report
from tpujob_coordinator.membership import Member, Place, World
from tpujob_coordinator.messages import (
    RECOMPILING_MESSAGE,
    share_message,
    slowdown_message,
    straggler_message,
)
from tpujob_coordinator.outbox import Outbox
from tpujob_coordinator.shares import Recompiles, Shares
from tpujob_coordinator.stragglers import HostStep, Straggler, Stragglers

#: Round trips are measured this often, or more seldom in a world of more hosts than this.
PING_MS = 1_000
#: Stragglers of whom more are found at once than one in so many hosts are no single host's fault.
_FEW = 10


class Health:
    """Knows who holds up the world, and what of it the timeline has been told."""

    def __init__(self, config: CoordinatorConfig, world: World) -> None:
        self._world = world
        self.watch: Stragglers[Place] = Stragglers(world.places, config.straggler_ratio)
        self.shares = Shares()
        self._recompiles = Recompiles()
        self._probes: dict[Place, int] = {}
        self._told: dict[tuple[Finding, Place], dict[str, Any]] = {}
        self._ping_at_ms = 0
        self._tellers: set[Place] = set()  # others need no clock

    # ---- samples

    def take(self, member: Member, report: Report, now_ms: int) -> None:
        """The times that a report tells; they mean nothing before the clock is known."""
        self._recompiles.see(report.recompiles, now_ms)
        offset_ms, place = member.clock.offset_ms, member.place
        if report.samples:
            self._tellers.add(place)
        if offset_ms is not None:
            for step, arrived, *spans in report.samples:
                told = HostStep(arrived + offset_ms, member.clock.error_ms, *spans)
                self.watch.stepped(place, int(step), told)
        if report.probes > self._probes.get(place, 0):
            self._probes[place] = report.probes
            self.watch.probed(place, report.probe_us / 1000)

    def pong(self, member: Member, pong: Pong, now_ms: int) -> None:
        """A round trip is over."""
        self.watch.pinged(member.place, float(member.clock.take(pong, now_ms)))

    def ping_if_due(self, members: Mapping[Place, Member], outbox: Outbox, now_ms: int) -> None:
        """Begin a round trip to everybody who tells times."""
        if now_ms >= self._ping_at_ms:
            self._ping_at_ms = now_ms + max(PING_MS, len(self._world.places))
            outbox.tell(members, self._tellers, Ping(now_ms))

    # ---- findings

    def news(
        self, members: Mapping[Place, Member], step: int, now_ms: int
    ) -> Iterator[dict[str, Any]]:
        """Data of the FINDING events about what has begun, and what is over."""
        found = dict(self._found(members, step))
        if self._recompiles.are_many(now_ms):
            data = self._data(Finding.RECOMPILING, 1.0, RECOMPILING_MESSAGE, step)
            found[Finding.RECOMPILING, NOBODY] = data
        for key in self._told.keys() - found.keys():
            yield self._told.pop(key) | {"isOpen": False, "step": step}
        for key in sorted(found.keys() - self._told.keys()):
            self._told[key] = found[key]
            yield found[key]

    def culprit(self) -> tuple[Place, Straggler] | None:
        """The host that holds up the others most, if it is one host's fault."""
        found = self.watch.stragglers
        if not found or len(found) > max(1, len(self._world.places) // _FEW):
            return None
        return max(found.items(), key=lambda item: item[1].ratio)

    def _found(
        self, members: Mapping[Place, Member], step: int
    ) -> Iterator[tuple[tuple[Finding, Place], dict[str, Any]]]:
        for place, straggler in self.watch.stragglers.items():
            if member := members.get(place):
                message = straggler_message(place, straggler)
                data = self._data(Finding.STRAGGLER, straggler.ratio, message, step)
                who = member.identity | {"signal": straggler.signal, "cause": straggler.cause}
                yield (Finding.STRAGGLER, place), data | who
        pace = self.watch.pace
        if pace.is_slow and not self.watch.stragglers:
            message = slowdown_message(pace.ratio, pace.grown)
            data = self._data(Finding.SLOWDOWN, pace.ratio, message, step)
            yield (Finding.SLOWDOWN, NOBODY), data | {"cause": pace.grown}

        for finding, share in self.shares.raised.items():
            if not self.watch.stragglers:  # it may be one host's
                message = share_message(finding, share)
                yield (finding, NOBODY), self._data(finding, 1 / (1 - share), message, step)

    def _data(self, kind: Finding, ratio: float, message: str, step: int) -> dict[str, Any]:
        return {
            "finding": kind.value,
            "isOpen": True,
            "generation": self._world.generation,
            **_NO_HOST,
            "signal": "",
            "ratio": round(ratio, 3),
            "step": step,
            "message": message,
        }


NOBODY = Place(-1, -1)
_NO_HOST: dict[str, Any] = {"slice": -1, "host": -1, "node": "", "pod": ""}
