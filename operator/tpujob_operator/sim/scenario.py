"""What is simulated: a job, its faults, how long things take, and what the product does."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping

from tpujob_operator.core.interval import PRIOR_RATE_PER_CHIP_S
from tpujob_operator.sim.faults import (
    DAY_MS,
    Fault,
    Where,
    arriving,
    counted,
    exponential,
    planned,
    weibull,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Times:
    """How long things take, in seconds. None of this was measured on a TPU: see ``SOURCES``."""

    step: float = 6.0
    blocked: float = 0.5
    lag: float = 20.0
    init: float = 18.0
    restore: float = 60.0
    first_step: float = 13.0
    replace: float = 96.0  # a slice: found missing → its new agents have connected
    recreate: float = 611.0  # all pods of the job, where nothing restarts in place
    silence: float = 100.0  # until a dead host is noticed, where nothing restarts in place
    grace: float = 60.0  # notice before maintenance


SOURCES: Mapping[str, str] = {
    "step": "16 M tokens a step on 16,384 chips at 400 TFLOP/s each (Llama 3 report)",
    "blocked": "target for large jobs; here 0.1 s for 312 MiB (docs/benchmarks.md)",
    "lag": "target for large jobs",
    "init": "MaxText on v6e-32, log of 2026-04: 43 s to devices less 25 s of imports",
    "restore": "upper bound published for multi-tier restores at 35,000 chips",
    "first_step": "Pathways elastic demo on 768 chips: 12.7 s from restore to next step",
    "replace": "1 s + 50 s rescheduling (same demo) + 20 s image + 25 s imports; needs free hosts",
    "recreate": "mean of 454 and 768 s for a requeue at scale (ByteRobust)",
    "silence": "default heartbeat timeout of JAX's distributed runtime",
    "grace": "assumed; spot capacity gives 30 s, maintenance more",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Features:
    """What the product does; all off is a plain JobSet with a habit for an interval."""

    auto_interval: bool = True
    in_place: bool = True
    elastic: bool = False
    replacement_timeout_s: int = 120  # patience before a smaller world is formed
    spares: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong."""

    per_chip_day: float = PRIOR_RATE_PER_CHIP_S * 86_400
    unplanned: int | None = None  # exactly so many, instead of a rate
    planned: int = 0
    host_share: float = 0.78
    weibull_shape: float = 1.0  # 1: exponential
    width: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """One simulated job."""

    name: str
    chips: int
    chips_per_slice: int
    days: float
    faults: Faults = Faults()
    times: Times = Times()
    features: Features = Features()
    fixed_interval_steps: int = 750
    #: A steady stretch is told to the coordinator this often instead of every second: with the
    #: last word before every fault the ledger's sums are the same.
    told_every_s: float = 3_600.0
    #: To the core a slice is whole or it is not: one agent can stand for all of its hosts.
    agents_per_slice: int = 1

    @property
    def agents(self) -> int:
        """Agents of a world of the wanted size."""
        return self.slices * self.agents_per_slice

    @property
    def slices(self) -> int:
        """Slices the job trains on; a partial one counts."""
        return -(-self.chips // self.chips_per_slice)

    @property
    def duration_ms(self) -> int:
        """Length of the run."""
        return round(self.days * DAY_MS)

    def draw(self, seed: int) -> list[Fault]:
        """All faults in order of time; the same for the same seed, whatever the features."""
        chance = random.Random(seed)  # noqa: S311 - chance, not secrets
        faults = self.faults
        where = Where(self.slices, faults.host_share, faults.width)
        until_ms = self.duration_ms
        known = planned(faults.planned, where, until_ms=until_ms, chance=chance)
        if faults.unplanned is not None:
            drawn = counted(faults.unplanned, where, until_ms=until_ms, chance=chance)
            return sorted([*known, *drawn])
        mean_ms = DAY_MS / (faults.per_chip_day * self.chips)
        shape = faults.weibull_shape
        gaps = exponential(mean_ms) if shape == 1 else weibull(mean_ms, shape)
        return sorted([*known, *arriving(gaps, where, until_ms=until_ms, chance=chance)])


SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("llama3", 16_384, 256, 54, Faults(unplanned=419, planned=47)),
        Scenario("year", 10_000, 256, 365),
        Scenario("v5e-50944", 50_944, 256, 14),
        # A slice that is a whole pod has no free hosts beside it: it waits for a repair.
        Scenario("ironwood", 4 * 9_216, 9_216, 54, times=Times(replace=1_800.0)),
    )
}
#: Features added one by one; each is worth the difference to the row above it.
LADDER: Mapping[str, Features] = {
    "pods made anew, a save every 750 steps": Features(auto_interval=False, in_place=False),
    "+ interval that pays": Features(in_place=False),
    "+ restart in place": Features(),
    "+ smaller worlds meanwhile": Features(elastic=True),
    "+ a spare slice": Features(elastic=True, spares=1),
}
#: What others have published of such runs.
PUBLISHED: Mapping[str, str] = {
    "llama3": "Published for this run: over 90 % effective training time (Llama 3 report).",
    "v5e-50944": "No goodput was published for the run of this size (50,944 chips).",
}
