"""How often to save: the interval that wastes least, from what saves and failures cost.

The model. Failures are a Poisson process with mean ``M``. Training goes on for ``p - δ``
seconds and is then held up for ``δ`` by a save, again and again with period ``p``; a save
is durable ``L`` after it began. A failure throws training back to the newest durable save
and takes ``R`` until the next step is under way. Counting, by renewal, the whole periods
that lie between two failures gives the share of time that is kept:

    G(p) = (p - δ)/M · exp(-(R + L)/M) / (exp(p/M) - 1)

which with ``L = 0`` is Daly's complete model (J. T. Daly, "A higher order estimate of the
optimum checkpoint interval for restart dumps", FGCS 22, 2006). ``R`` and ``L`` scale it and
do not move its maximum, where ``(1 - (p - δ)/M) · exp(p/M) = 1``. All times in seconds.
"""

from __future__ import annotations

import dataclasses
import math

#: Interruptions that cost work per chip and second: 5e-4 a day. Published fleets: 4.7e-4
#: (Llama 3, 419 unplanned in 54 days of 16,384 GPUs), 2e-4 (TPU v4 machines, NSDI'24),
#: 8e-4 (Meta's RSC-1); 5e-4 lies between them.
PRIOR_RATE_PER_CHIP_S = 5e-4 / 86_400
#: A new save waits until the one before is durable, with this much room.
LAG_ROOM = 1.1
#: Bounds of every interval, whatever is measured.
LEAST_S = 1.0
MOST_S = 3_600.0
#: An interval that is off by less costs next to nothing (the optimum is flat): it stays.
SLACK = 1.25
#: One change at most doubles or halves the interval, as measurements can be flukes.
LARGEST_CHANGE = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Costs:
    """What one job's saves and failures cost, in seconds."""

    blocked_s: float  # δ: a save holds training up
    lag_s: float  # L: from its beginning until it is durable
    recovery_s: float  # R: from a fault until training is under way again, detection included
    mtbf_s: float  # M: mean time between failures that cost work

    def goodput(self, period_s: float) -> float:
        """The share of time that is kept, saving every ``period_s``; see the module's model."""
        mean_s = self.mtbf_s
        if period_s <= self.blocked_s or period_s / mean_s > _LARGEST_EXPONENT:
            return 0.0
        starts = math.exp(-(self.recovery_s + self.lag_s) / mean_s)
        return (period_s - self.blocked_s) / mean_s * starts / math.expm1(period_s / mean_s)


#: Beyond this many mean times between failures nothing is ever kept, and ``exp`` overflows.
_LARGEST_EXPONENT = 700.0
_MOST_ROUNDS = 60


@dataclasses.dataclass(frozen=True, slots=True)
class IntervalPlan:
    """An interval and what is expected of it."""

    interval_s: float  # from the beginning of a save to that of the next
    goodput: float  # expected share of time that is kept
    costs: Costs
    is_storage_bound: bool  # saves would come more often if they became durable faster


def optimum_s(blocked_s: float, mtbf_s: float) -> float:
    """The period that maximizes ``Costs.goodput``; 0 where saves hold nothing up.

    Solves ``ln(1 - x) + x + d = 0`` for ``x = (p - δ)/M``, ``d = δ/M``. Newton's method
    comes down monotonically from either bound above the root: the function is concave.
    """
    if blocked_s <= 0:
        return 0.0
    d = blocked_s / mtbf_s
    gap = math.exp(-1 - d)  # 1 - x, as large as it can get; x may round to 1
    if gap < _SMALLEST_GAP:
        return mtbf_s + blocked_s
    x = min(math.sqrt(2 * d), 1 - gap)
    for _ in range(_MOST_ROUNDS):
        step = (math.log1p(-x) + x + d) * (1 - x) / x
        x += step
        if abs(step) <= 1e-12 * x:
            break
    return x * mtbf_s + blocked_s


_SMALLEST_GAP = 1e-12


def plan(costs: Costs, *, step_s: float) -> IntervalPlan:
    """The interval that pays, within what storage and the loop can do.

    Args:
        costs: measured, or assumed.
        step_s: time of a step; saves lie between steps.
    """
    wanted_s = optimum_s(costs.blocked_s, costs.mtbf_s)
    floor_s = max(LAG_ROOM * costs.lag_s, step_s + costs.blocked_s, LEAST_S)
    interval_s = max(floor_s, min(wanted_s, MOST_S))
    return IntervalPlan(
        interval_s,
        costs.goodput(interval_s),
        costs,
        is_storage_bound=LAG_ROOM * costs.lag_s > max(wanted_s, step_s),
    )


def next_interval_s(current_s: float, wanted_s: float) -> float:
    """The interval to go on with: the wanted one is approached, small differences ignored.

    Args:
        current_s: the interval in force; 0: none yet.
        wanted_s: of a new plan.
    """
    if not current_s:
        return wanted_s
    ratio = wanted_s / current_s
    if 1 / SLACK <= ratio <= SLACK:
        return current_s
    return current_s * min(LARGEST_CHANGE, max(1 / LARGEST_CHANGE, ratio))
