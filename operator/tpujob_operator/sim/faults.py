"""When and where things break: fault processes, equal for equal seeds."""

from __future__ import annotations

import dataclasses
import enum
import math
import random
from collections.abc import Callable, Iterator

DAY_MS = 86_400_000


class FaultKind(enum.StrEnum):
    """What breaks."""

    CRASH = "crash"  # a trainer process dies; its host is sound
    HOST = "host"  # a host falls silent; its slice has to be replaced
    PLANNED = "planned"  # maintenance with notice; the slice is replaced


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One fault of the slices ``slices`` at a time after the start, in milliseconds."""

    at_ms: int
    kind: FaultKind
    slices: tuple[int, ...]


#: Gaps between faults, in milliseconds, without end.
Gaps = Callable[[random.Random], Iterator[float]]


def exponential(mean_ms: float) -> Gaps:
    """Gaps of a Poisson process: the past says nothing about the next fault."""

    def gaps(chance: random.Random) -> Iterator[float]:
        while True:
            yield chance.expovariate(1 / mean_ms)

    return gaps


def weibull(mean_ms: float, shape: float) -> Gaps:
    """Gaps of a Weibull renewal process; a shape below 1 makes faults come in bunches."""
    scale_ms = mean_ms / math.gamma(1 + 1 / shape)

    def gaps(chance: random.Random) -> Iterator[float]:
        while True:
            yield chance.weibullvariate(scale_ms, shape)

    return gaps


@dataclasses.dataclass(frozen=True, slots=True)
class Where:
    """What a fault hits."""

    slices: int  # of the job, spares included
    host_share: float  # of the unplanned faults; the others are crashes
    width: int = 1  # slices that share a fate (power, network) and are lost together


def arriving(gaps: Gaps, where: Where, *, until_ms: int, chance: random.Random) -> Iterator[Fault]:
    """Unplanned faults with these gaps, up to a time."""
    at_ms = 0.0
    for gap_ms in gaps(chance):
        at_ms += gap_ms
        if at_ms >= until_ms:
            return
        yield _unplanned(int(at_ms), where, chance)


def counted(number: int, where: Where, *, until_ms: int, chance: random.Random) -> list[Fault]:
    """Exactly so many unplanned faults, at the times of a Poisson process known to have as many."""
    times = sorted(chance.randrange(until_ms) for _ in range(number))
    return [_unplanned(at_ms, where, chance) for at_ms in times]


def planned(number: int, where: Where, *, until_ms: int, chance: random.Random) -> list[Fault]:
    """So many maintenances of one slice each, at any time."""
    return [
        Fault(chance.randrange(until_ms), FaultKind.PLANNED, (chance.randrange(where.slices),))
        for _ in range(number)
    ]


def _unplanned(at_ms: int, where: Where, chance: random.Random) -> Fault:
    is_host = chance.random() < where.host_share
    first = chance.randrange(where.slices)
    if not is_host:
        return Fault(at_ms, FaultKind.CRASH, (first,))
    first -= first % where.width
    together = range(first, min(where.slices, first + where.width))
    return Fault(at_ms, FaultKind.HOST, tuple(together))
