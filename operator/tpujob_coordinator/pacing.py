"""How often the trainer is to save, planned anew at every commit that tells its cost."""

from __future__ import annotations

from typing import Any

from tpujob_agent.protocol import CoordinatorConfig, Event, EventKind
from tpujob_operator.core.interval import IntervalPlan, next_interval_s, plan
from tpujob_operator.core.measures import Measures

#: A prediction that moves by less than this is not told anew.
_TELLING_CHANGE = 0.002


class Pacing:
    """Reads the job's own timeline. What was measured before this coordinator is not known."""

    def __init__(self, config: CoordinatorConfig) -> None:
        self._config = config
        self.measures = Measures()
        self.interval_ms = 0  # 0: none was planned, the trainer has one of its own
        self._told_ratio = 0.0

    @property
    def save_ms(self) -> int:
        """The longest that a recent save took to be durable; 0: no program has told."""
        return max(self.measures.lag_ms, default=0)

    def see(self, event: Event) -> dict[str, Any] | None:
        """Data of the INTERVAL event that follows from this event; None: nothing new."""
        self.measures = self.measures.apply(event)
        if event.kind is not EventKind.COMMITTED or not self._config.plans_interval:
            return None
        costs = self.measures.costs(self._config.chips)
        if costs is None:
            return None
        wanted = plan(costs, step_s=self.measures.step_ms / 1000)
        interval_s = next_interval_s(self.interval_ms / 1000, wanted.interval_s)
        interval_ms = round(interval_s * 1000)
        ratio = costs.goodput(interval_s)
        is_news = abs(ratio - self._told_ratio) >= _TELLING_CHANGE
        if interval_ms == self.interval_ms and not is_news:
            return None
        self.interval_ms, self._told_ratio = interval_ms, ratio
        return _told(interval_ms, ratio, wanted)


def _told(interval_ms: int, ratio: float, wanted: IntervalPlan) -> dict[str, Any]:
    costs = wanted.costs
    return {
        "intervalMs": interval_ms,
        "predictedRatio": round(ratio, 4),
        "mtbfMs": round(costs.mtbf_s * 1000),
        "blockedMs": round(costs.blocked_s * 1000),
        "lagMs": round(costs.lag_s * 1000),
        "recoveryMs": round(costs.recovery_s * 1000),
        "isStorageBound": wanted.is_storage_bound,
    }
