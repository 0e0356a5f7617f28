"""Whether training spends too much of its time on input or on saves: pure."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

from tpujob_agent.protocol import Finding

#: Judged over so long at most, and at least.
WINDOW_MS, LEAST_MS = 300_000, 60_000


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A part of the time that is too much above one share, and well again below the other."""

    key: str  # of a PROGRESS event
    limit: float
    calm: float


RULES = {
    Finding.INPUT_BOUND: Rule("inputWaitMs", 0.10, 0.05),
    Finding.SAVE_BOUND: Rule("saveBlockedMs", 0.05, 0.025),
}


#: So many recompilations are too many within this long.
RECOMPILES, RECOMPILES_MS = 3, 600_000


class Recompiles:
    """Counts programs that are compiled again; every host compiles the same ones."""

    def __init__(self) -> None:
        self._most = 0
        self._at_ms: collections.deque[int] = collections.deque(maxlen=RECOMPILES)

    def see(self, total: int, now_ms: int) -> None:
        """One host has recompiled so many programs so far."""
        if total > self._most:
            self._at_ms.extend([now_ms] * min(total - self._most, RECOMPILES))
            self._most = total

    def are_many(self, now_ms: int) -> bool:
        """Whether the last few were made within a short time."""
        return len(self._at_ms) == RECOMPILES and now_ms - self._at_ms[0] < RECOMPILES_MS


class Shares:
    """Reads the PROGRESS events of one generation."""

    def __init__(self) -> None:
        self._seen: collections.deque[tuple[int, dict[Finding, int]]] = collections.deque()
        self._begun_ms = 0  # where the first of them begins
        self.raised: dict[Finding, float] = {}  # with the share

    def see(self, progress: Mapping[str, Any]) -> None:
        """Take the next stretch of steps."""
        ended_ms = int(progress["endedAtMs"])
        if not self._begun_ms:  # the first step may have waited for anything
            self._begun_ms = ended_ms
            return
        spent = {finding: int(progress[rule.key]) for finding, rule in RULES.items()}
        self._seen.append((ended_ms, spent))
        while ended_ms - self._begun_ms > WINDOW_MS and len(self._seen) > 1:
            self._begun_ms = self._seen.popleft()[0]
        span_ms = ended_ms - self._begun_ms
        if span_ms < LEAST_MS:
            return
        for finding, rule in RULES.items():
            share = sum(spent[finding] for _, spent in self._seen) / span_ms
            if share > (rule.calm if finding in self.raised else rule.limit):
                self.raised[finding] = share
            else:
                self.raised.pop(finding, None)
