"""Restart budgets and backoff per cause: pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from tpujob_agent.protocol import BUDGET_OF_CAUSE, NOT_COUNTED, Budget, Cause

NO_LIMIT = -1
_FIRST_BACKOFF_MS = 1_000
_LAST_BACKOFF_MS = 60_000
#: Restarts in a row, without a commit between them, that need not wait.
_IMMEDIATE = {
    Budget.USER_ERROR: 1,
    Budget.PROCESS: 3,
    Budget.INFRASTRUCTURE: 3,
    Budget.STRAGGLER: 3,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from a loss: give up on a spent budget, or wait and restart."""

    spent: Budget | None
    backoff_ms: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Budgets:
    """Restarts used so far. A budget of n allows n restarts."""

    limits: Mapping[str, int]
    used: Mapping[str, int]
    #: Onsets of losses in a row without a newly committed step, but for those NOT_COUNTED.
    onsets: tuple[int, ...] = ()
    taken_away: frozenset[int] = frozenset()  # onsets of losses that turned out to be such
    in_a_row: int = 0  # of those, restarts of the same budget
    latest: Budget | None = None

    @property
    def without_commit(self) -> int:
        """Restarts in a row without progress."""
        return sum(onset not in self.taken_away for onset in self.onsets)

    def charge(self, cause: Cause, onset_ms: int) -> tuple[Budgets, Verdict]:
        """The budgets after one more loss, and what it means."""
        budget = BUDGET_OF_CAUSE[cause]
        used = {**self.used, budget.value: self.used.get(budget.value, 0) + 1}
        in_a_row = self.in_a_row + 1 if budget is self.latest else 1
        charged = dataclasses.replace(
            self,
            used=used,
            onsets=self.onsets if cause in NOT_COUNTED else (*self.onsets, onset_ms),
            in_a_row=in_a_row,
            latest=budget,
        )
        if self._is_over(budget, used[budget.value]):
            return charged, Verdict(budget)
        if self._is_over(Budget.NO_PROGRESS, charged.without_commit):
            return charged, Verdict(Budget.NO_PROGRESS)
        return charged, Verdict(None, backoff_ms(budget, in_a_row))

    def committed(self) -> Budgets:
        """The budgets after a newly committed step."""
        return dataclasses.replace(self, onsets=(), in_a_row=0, latest=None)

    def explained(self, taken_away: Iterable[int]) -> Budgets:
        """The budgets now that these losses, by their onsets, were hosts taken away."""
        return dataclasses.replace(self, taken_away=frozenset(taken_away))

    def allows(self, cause: Cause) -> bool:
        """Whether one more loss of this cause would leave the job running."""
        return not self.charge(cause, 0)[1].spent

    def _is_over(self, budget: Budget, used: int) -> bool:
        limit = self.limits.get(budget.value, NO_LIMIT)
        return limit != NO_LIMIT and used > limit


def backoff_ms(budget: Budget, in_a_row: int) -> int:
    """How long a restart waits that is the n-th of this budget without a commit between them."""
    doublings = in_a_row - 1 - _IMMEDIATE[budget]
    if doublings < 0:
        return 0
    return int(min(_LAST_BACKOFF_MS, _FIRST_BACKOFF_MS * 2 ** min(doublings, 10)))
