"""How well stragglers are found, by simulation: ``python -m bench stragglers``.

A matrix of faults, factors and sizes of worlds; and hours without a fault but with all that
could be taken for one. Every run has a seed of its own and can be repeated alone. The noise is
modelled, or drawn from what real processes have shown (``--noise recorded``).
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from bench import recorded
from bench.figures import machine
from bench.noise import Modelled, Noise
from bench.traces import Fault, Kind, Moment, World, traps
from tpujob_coordinator.stragglers import Stragglers

FACTORS = (1.05, 1.10, 1.15, 1.25, 1.5, 2.0)
SIZES = (2, 4, 8)
#: Each step costs as much as many of a small world: fewer runs, of fewer factors.
LARGE, LARGE_FACTORS = 64, (1.05, 1.15, 1.5)
_STRETCHES = 10
LIMIT = 1.10
#: What has to be found.
LEAST_FACTOR = 1.15
_HEALTHY_S, _FAULTY_S = 90, 300
_HOUR_S = 3600

Noises = Callable[[int, np.random.Generator], Noise]


def noises(name: str) -> Noises:
    """What makes the noise of a world of so many hosts: ``modelled`` or ``recorded``."""
    if name == "modelled":
        return Modelled
    recording = recorded.Recording.load(recorded.FILE)
    print(f"noise recorded from {recording.about}")
    return lambda hosts, rng: recorded.Recorded(recording, hosts, rng)


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one run."""

    fault: Fault
    hosts: int
    named: int | None  # the first host that was named; None: none
    samples: int  # until then, of the signal it was found by
    too_early: bool  # somebody was named before there was a fault


def run(kind: Kind, factor: float, hosts: int, seed: int, noise: Noises = Modelled) -> Outcome:
    """One run: healthy for a while, then the fault until somebody is named."""
    rng = np.random.default_rng([seed, hosts, int(100 * factor), list(Kind).index(kind)])
    step_ms = float(rng.uniform(200, 1500))
    world = World(hosts, step_ms, rng, noise(hosts, rng))
    watch = Stragglers(range(hosts), LIMIT)
    fault = Fault(kind, factor, int(rng.integers(hosts)))
    for _ in range(round(_HEALTHY_S * 1000 / step_ms)):
        world.advance(watch, None, Moment())
        if watch.stragglers:
            return Outcome(fault, hosts, min(watch.stragglers), 0, too_early=True)
    for step in range(1, round(_FAULTY_S * 1000 / step_ms)):
        world.advance(watch, fault, Moment())
        if found := watch.stragglers:
            named = max(found, key=lambda host: found[host].ratio)
            is_timed = found[named].signal in ("device", "network")
            seconds = max(1.0, step_ms * factor / 1000)
            samples = round(step * step_ms * factor / 1000 / seconds) if is_timed else step
            return Outcome(fault, hosts, named, samples, too_early=False)
    return Outcome(fault, hosts, None, 0, too_early=False)


def matrix(
    runs: int,
    kinds: Iterable[Kind] = Kind,
    factors: Sequence[float] = FACTORS,
    sizes: Sequence[int] = SIZES,
    noise: Noises = Modelled,
) -> list[Outcome]:
    """All cells, ``runs`` of each."""
    cells = itertools.product(kinds, factors, sizes, range(runs))
    return [run(kind, factor, hosts, seed, noise) for kind, factor, hosts, seed in cells]


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """Precision, recall, the right culprit, and how long it took."""

    precision: float  # of the alarms, those in which the host at fault was named
    recall: float  # of the faults that have to be found
    culprit: float  # of the faults found
    samples: float  # median until the alarm, of the faults that have to be found
    samples_p95: float


def figures(outcomes: Sequence[Outcome]) -> Figures:
    """The figures of many runs."""
    alarms = [o for o in outcomes if o.named is not None]
    right = [o for o in alarms if o.named == o.fault.host and not o.too_early]
    wanted = [o for o in outcomes if o.fault.factor >= LEAST_FACTOR]
    found = [o for o in right if o.fault.factor >= LEAST_FACTOR]
    late = [o for o in alarms if not o.too_early]
    times = sorted(o.samples for o in found) or [0]
    return Figures(
        precision=len(right) / max(1, len(alarms)),
        recall=len(found) / max(1, len(wanted)),
        culprit=len(right) / max(1, len(late)),
        samples=statistics.median(times),
        samples_p95=times[min(len(times) - 1, round(0.95 * len(times)))],
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Peace:
    """Hours without a fault on any host."""

    hours: float
    false_alarms: int
    slow_told: int  # stretches in which the job's slowness was told, as nobody's
    us_per_host_second: float  # of the detector's time


def peace(hours: float, hosts: int, seed: int, noise: Noises = Modelled) -> Peace:
    """Run traps for so long."""
    rng = np.random.default_rng(seed)
    world = World(hosts, 1000.0, rng, noise(hosts, rng))
    watch = Stragglers(range(hosts), LIMIT)
    moments, alarms, slow, was_slow, known = traps(rng), 0, 0, False, set[int]()
    while world.elapsed_ms < hours * _HOUR_S * 1000:
        world.advance(watch, None, next(moments))
        now = set(watch.stragglers)
        alarms, known = alarms + len(now - known), now
        slow, was_slow = slow + (watch.pace.is_slow and not was_slow), watch.pace.is_slow
    cost_us = world.told_s * 1e6 / (world.elapsed_ms / 1000 * hosts)
    return Peace(hours, alarms, slow, cost_us)


def main(runs: int, hours: float, noise_name: str) -> None:
    """Print a line for each kind and factor, the figures of all, and those of peace."""
    print(machine())
    begun, noise = time.perf_counter(), noises(noise_name)
    outcomes = matrix(runs, noise=noise)
    by_cell: dict[tuple[str, float], list[Outcome]] = collections.defaultdict(list)
    for outcome in outcomes:
        by_cell[outcome.fault.kind, outcome.fault.factor].append(outcome)
    print(f"{'fault':<14} factor  found  culprit  samples (p95)   sizes {SIZES}, {runs} runs each")
    for (kind, factor), cell in by_cell.items():
        found = [o for o in cell if o.named is not None and not o.too_early]
        right = [o for o in found if o.named == o.fault.host]
        times = sorted(o.samples for o in found) or [0]
        share = len(right) / len(found) if found else 1.0
        p95 = times[min(len(times) - 1, round(0.95 * len(times)))]
        print(
            f"{kind:<14} {factor:5.2f}  {len(found) / len(cell):5.3f}  {share:7.3f}  "
            f"{statistics.median(times):5.0f} ({p95})"
        )
    print(figures(outcomes), f"{len(outcomes)} runs", flush=True)
    large = matrix(max(1, runs // 6), factors=LARGE_FACTORS, sizes=[LARGE], noise=noise)
    print(f"{LARGE} hosts: {figures(large)} {len(large)} runs", flush=True)
    for stretch in range(_STRETCHES):
        print(peace(hours / _STRETCHES, 8, 100 + stretch, noise), flush=True)
    print(f"{time.perf_counter() - begun:.0f} s")
