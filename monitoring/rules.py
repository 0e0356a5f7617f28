"""Recording rules: goodput over windows, and the thresholds of the alerts on it.

Names follow ``level:metric:operations``. Ratios are sums divided by sums, never means of
ratios. Time in suspension and in a queue is nobody's badput here: it is not counted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tpujob_operator.core import families as f

BY_JOB = "by (namespace, job)"
ON_JOB = "on (namespace, job)"
BUDGET = "namespace_job:tpujob_badput_budget:ratio"
RECOVERY_MEAN = "namespace_job:tpujob_recovery_duration_seconds:mean"
FLEET_GOODPUT = "tpujob_goodput:ratio_chips"
_IDLE = 'type!~"suspended|queued"'


class Burn(NamedTuple):
    """Badput that spends its budget so many times too fast, over a long and a short window.

    With a target of 90 % a burn of 14.4 would be more than all of the time: ``cap`` is the share
    of badput that always calls. Below a target of ``1 - cap`` the budget itself is the limit.
    """

    name: str
    long: str
    short: str
    factor: float
    cap: float
    severity: str

    @property
    def threshold(self) -> str:
        """Name of the rule that holds the limit."""
        return f"namespace_job:tpujob_badput_limit:{self.name}"


BURNS = (
    Burn("hour", "1h", "5m", 14.4, 0.8, "critical"),
    Burn("quarter", "6h", "30m", 6, 0.4, "critical"),
    Burn("day", "1d", "2h", 3, 0.4, "warning"),
    Burn("days", "3d", "6h", 1, 0.4, "warning"),
)
WINDOWS = tuple(sorted({window for burn in BURNS for window in (burn.long, burn.short)}))


def badput(window: str) -> str:
    """Name of the rule that holds the badput of a window."""
    return f"namespace_job:tpujob_badput:ratio_{window}"


def _badput(window: str) -> str:
    """One minus productive time by wall time; unsettled steps count as productive in both."""
    unsettled = f"sum {BY_JOB} (delta({f.UNSETTLED.series}[{window}]))"
    productive = f'sum {BY_JOB} (increase({f.TIME.series}{{type="productive"}}[{window}]))'
    wall = f"sum {BY_JOB} (increase({f.TIME.series}{{{_IDLE}}}[{window}]))"
    ratio = f"({productive} + {unsettled}) / (({wall} + {unsettled}) > 0)"
    return f"1 - clamp({ratio}, 0, 1)"


def _limit(burn: Burn) -> str:
    return f"(clamp_max({burn.factor:g} * {BUDGET}, {burn.cap:g}) >= {BUDGET}) or {BUDGET}"


def grown(series: str, window: str) -> str:
    """How much a counter has grown, one that began in the window included.

    ``increase`` takes no notice of the value a series begins with, which is all there is of an
    incident of a kind that had not happened before.
    """
    now, before = f"sum {BY_JOB} ({series})", f"sum {BY_JOB} ({series} offset {window})"
    return f"({now} - ({before} or 0 * {now}))"


def recording() -> list[dict[str, Any]]:
    """All recording rules."""
    productive = f'{f.CHIP_TIME.series}{{type="productive"}}'
    unsettled = f"sum({f.UNSETTLED_CHIPS.series})"
    total = f'{f.RECOVERY.name}_sum{{stage="total"}}'
    count = f'{f.RECOVERY.name}_count{{stage="total"}}'
    rules = {badput(window): _badput(window) for window in WINDOWS}
    rules[BUDGET] = f'1 - max {BY_JOB} ({f.OBJECTIVE.series}{{objective="goodput"}})'
    rules |= {burn.threshold: _limit(burn) for burn in BURNS}
    rules[RECOVERY_MEAN] = f"sum {BY_JOB} ({total}) / sum {BY_JOB} ({count})"
    rules[FLEET_GOODPUT] = (
        f"(sum({productive}) + {unsettled}) / ((sum({f.CHIP_TIME.series}) + {unsettled}) > 0)"
    )
    return [{"record": name, "expr": expression} for name, expression in rules.items()]
