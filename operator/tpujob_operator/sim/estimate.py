"""What a job will take: days, goodput and money, by the interval policy's formula.

Estimates: faults, times and the utilisation of the chips are assumptions, which are told with
the answer. The formula is that of ``core.interval``; announced ends of nodes, which cost a restart
and no steps, are left to it as time that is lost in proportion.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from tpujob_agent.wire import member_timeout_s
from tpujob_operator.core import interval
from tpujob_operator.sim.outcome import Outcome, simulate
from tpujob_operator.sim.scenario import Faults, Features, Scenario, Times
from tpujob_tpu.catalogue import BY_NAME, USABLE, SliceShape, chips_of, slice_shape
from tpujob_tpu.chips import CHIPS
from tpujob_tpu.prices import Prices, usd_per_chip_hour
from tpujob_tpu.provisioning import (
    FLEX_START_RUN_S,
    NOT_BY_FLEX_START,
    SPOT_GRACE_S,
    Provisioning,
)

DAY_S = 86_400
#: The agent ends a world so long before its grace period does (docs/recovery.md).
_RESERVE_S = 5
#: A simulation makes at most so many saves, which is a few seconds' work.
_MOST_SAVES = 10_000
#: It counts in whole milliseconds. Goodput does not depend on how many steps a second has.
_SHORTEST_STEP_S = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """What there is to do; None: not known."""

    steps: int | None = None
    tokens: int | None = None  # of a step
    flops: float | None = None  # that the model needs for a step


@dataclasses.dataclass(frozen=True, slots=True)
class Capacity:
    """Slices that work together, spares beside them, and how they are bought."""

    accelerator: str
    topology: str
    slices: int
    spares: int = 0
    bought: Provisioning = Provisioning.ON_DEMAND

    @property
    def shape(self) -> SliceShape:
        """One slice."""
        return slice_shape(self.accelerator, self.topology)

    @property
    def chips(self) -> int:
        """Chips that train."""
        return self.slices * self.shape.chips

    @property
    def held(self) -> int:
        """Chips that are paid for."""
        return (self.slices + self.spares) * self.shape.chips

    @property
    def peak_flops(self) -> float:
        """Of all chips that train, FLOP/s in bf16."""
        return self.chips * CHIPS[self.accelerator].peak_flops


@dataclasses.dataclass(frozen=True, slots=True)
class Assumed:
    """What is put in."""

    mfu: float = 0.5
    step_s: float | None = None  # of the job's own slices, instead of the MFU
    times: Times = dataclasses.field(default_factory=Times)
    faults: Faults = dataclasses.field(default_factory=Faults)
    preemptions_per_slice_day: float = 1.0  # of spot slices; nobody publishes it
    run_s: int = FLEX_START_RUN_S[1]  # of flex-start nodes
    in_place: bool = True  # recovery.pods; otherwise every fault makes all pods anew, unannounced
    prices: Prices = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Hazard:
    """What interrupts a job, per day."""

    unplanned: float  # cost work
    planned: float  # are announced early enough for a save
    host_share: float  # of the unplanned ones

    @classmethod
    def of(cls, capacity: Capacity, assumed: Assumed) -> Hazard:
        """By the number of chips, and by how they are bought."""
        crashes = assumed.faults.per_chip_day * capacity.chips
        hosts = crashes * assumed.faults.host_share
        taken = planned = 0.0
        if capacity.bought is Provisioning.SPOT:
            taken = assumed.preemptions_per_slice_day * capacity.slices
            if assumed.times.blocked + assumed.times.lag <= SPOT_GRACE_S - _RESERVE_S:
                taken, planned = 0.0, taken
        elif capacity.bought is Provisioning.FLEX_START:
            planned = DAY_S / assumed.run_s  # all slices end at once
        if not assumed.in_place:
            taken, planned = taken + planned, 0.0
        return cls(crashes + taken, planned, (hosts + taken) / (crashes + taken))


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """What is expected; None: not known."""

    capacity: Capacity
    step_s: float | None
    mfu: float | None
    interval_s: float
    goodput: float
    days: float | None
    usd_per_day: float | None
    usd: float | None
    usd_per_million_tokens: float | None

    def to_json(self) -> dict[str, object]:
        """The estimate as plain data."""
        capacity = self.capacity
        return {
            "accelerator": capacity.accelerator,
            "topology": capacity.topology,
            "slices": capacity.slices,
            "spares": capacity.spares,
            "provisioning": capacity.bought.value,
            "chips": capacity.held,
            "hbmBytes": hbm_bytes(capacity),
            "stepSeconds": self.step_s,
            "mfu": self.mfu,
            "intervalSeconds": self.interval_s,
            "goodput": self.goodput,
            "days": self.days,
            "usdPerDay": self.usd_per_day,
            "usd": self.usd,
            "usdPerMillionTokens": self.usd_per_million_tokens,
        }


def hbm_bytes(capacity: Capacity) -> int:
    """Memory of all chips that train."""
    chip = CHIPS[capacity.accelerator]
    return capacity.chips * chip.devices * chip.hbm_bytes


def estimate(capacity: Capacity, work: Work, assumed: Assumed) -> Estimate:
    """Time and money of a job on these slices."""
    step_s = assumed.step_s
    if step_s is None and work.flops is not None:
        step_s = work.flops / capacity.peak_flops / assumed.mfu
    hazard = Hazard.of(capacity, assumed)
    plan = interval.plan(_costs(capacity, hazard, assumed), step_s=step_s or 0.0)
    lost_per_day = hazard.planned * _announced_s(capacity, assumed.times) / DAY_S
    goodput = plan.goodput / (1 + lost_per_day)
    price = usd_per_chip_hour(capacity.accelerator, capacity.bought, assumed.prices)
    usd_per_day = None if price is None else 24 * capacity.held * price
    train_s = step_s / goodput if step_s and goodput else None  # a step, with its share of the rest
    days = work.steps * train_s / DAY_S if work.steps and train_s else None
    per_token = None
    if usd_per_day is not None and train_s and work.tokens:
        per_token = 1e6 * usd_per_day * train_s / DAY_S / work.tokens
    return Estimate(
        capacity=capacity,
        step_s=step_s,
        mfu=work.flops / step_s / capacity.peak_flops if work.flops and step_s else None,
        interval_s=plan.interval_s,
        goodput=goodput,
        days=days,
        usd_per_day=usd_per_day,
        usd=None if usd_per_day is None or days is None else usd_per_day * days,
        usd_per_million_tokens=per_token,
    )


def _replaced_s(capacity: Capacity, times: Times) -> float:
    """Until a lost slice has hosts again: a spare is there already."""
    return 0.0 if capacity.spares else times.replace


def _start_s(times: Times) -> float:
    return times.init + times.restore + times.first_step


def _costs(capacity: Capacity, hazard: Hazard, assumed: Assumed) -> interval.Costs:
    times = assumed.times
    silent_s = member_timeout_s(capacity.slices * capacity.shape.hosts)
    gone_s = hazard.host_share * (silent_s + _replaced_s(capacity, times))
    if not assumed.in_place:
        gone_s = times.silence + times.recreate
    recovery_s = gone_s + _start_s(times)
    return interval.Costs(times.blocked, times.lag, recovery_s, DAY_S / hazard.unplanned)


def _announced_s(capacity: Capacity, times: Times) -> float:
    """Lost to one announced end: a save, another slice, a start."""
    return times.blocked + times.lag + _replaced_s(capacity, times) + _start_s(times)


def comparable(capacity: Capacity, accelerator: str) -> Capacity:
    """Slices of another generation that compute as much at their peak, and little more."""
    if accelerator == capacity.accelerator:
        return capacity
    chips = capacity.peak_flops / CHIPS[accelerator].peak_flops
    by_size = sorted(BY_NAME[accelerator].topologies, key=chips_of)
    enough = (name for name in by_size if chips_of(name) * capacity.slices >= chips)
    topology = next(enough, by_size[-1])
    slices = math.ceil(chips / chips_of(topology))
    return dataclasses.replace(capacity, accelerator=accelerator, topology=topology, slices=slices)


def choices(capacity: Capacity) -> Iterable[Capacity]:
    """Every generation, bought in every way that it can be bought; the job's own first."""
    names = [generation.name for generation in USABLE]
    for name in sorted(names, key=lambda name: name != capacity.accelerator):
        like = comparable(capacity, name)
        for way in Provisioning:
            if way is not Provisioning.FLEX_START or name not in NOT_BY_FLEX_START:
                yield dataclasses.replace(like, bought=way)


def simulated(
    found: Estimate, assumed: Assumed, features: Features, seed: int
) -> tuple[float, Outcome]:
    """One run through the simulator, and its days.

    As many as the job has, but a day at least, and no more than can be afforded.
    """
    capacity, hazard = found.capacity, Hazard.of(found.capacity, assumed)
    most_days = _MOST_SAVES * found.interval_s / DAY_S
    days = min(max(found.days or most_days, 1.0), most_days)
    faults = dataclasses.replace(
        assumed.faults,
        per_chip_day=hazard.unplanned / capacity.chips,
        host_share=hazard.host_share,
        planned=round(hazard.planned * days),
    )
    step_s = max(found.step_s or assumed.times.step, _SHORTEST_STEP_S)
    times = dataclasses.replace(assumed.times, step=step_s)
    scenario = Scenario("plan", capacity.chips, capacity.shape.chips, days, faults, times, features)
    return days, simulate("plan", scenario, seed)
