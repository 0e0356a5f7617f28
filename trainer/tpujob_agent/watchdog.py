"""Whether a trainer hangs: a function of what its record says and of time.

JAX never notices a peer that is alive and stuck, so that somebody has to watch the
clock. Every phase has a limit of its own; while training it follows the job's own
pace. A program that tells nothing is left alone, unless it is stopped by a signal.
"""

from __future__ import annotations

import collections
import dataclasses
import statistics

from tpujob.record import Snapshot
from tpujob_agent.protocol import Phase

#: Seconds without progress after which a phase before or after training counts as hung.
#: Restores and last saves move terabytes, and compiling a large model takes an hour at worst.
PHASE_LIMIT_S: dict[Phase, float] = {
    Phase.INIT: 300.0,
    Phase.RESTORE: 1800.0,
    Phase.COMPILE: 3600.0,
    Phase.SETUP: 900.0,
    Phase.FINISHING: 1800.0,
}
#: A loop may stand still for a save so long, or for so many times what the last one took.
SAVE_LIMIT_S = 1800.0
_SAVE_FACTOR = 10.0
#: Until the pace is known, a step may take this long: it may compile once more.
UNPACED_LIMIT_S = 600.0
#: A trainer stopped by SIGSTOP (state T; a debugger's is t) is not given longer than this.
STOPPED_LIMIT_S = 3.0
#: Step times that make the median, and how many it needs.
_KEPT, _NEEDED = 32, 3
#: A pause that was survived once, as for a blocking save, may take this many times as long.
_PAUSE_FACTOR = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class HangLimits:
    """``spec.health.hang``: a step may take ``factor`` median steps, and at least ``min_s``."""

    min_s: float = 60.0
    factor: float = 5.0


class Watchdog:
    """Watches one trainer. Times in seconds of a clock that never goes back."""

    def __init__(self, limits: HangLimits, now_s: float) -> None:
        self._limits = limits
        self._seen: tuple[Phase, int, int, int] = (Phase.STARTING, 0, -1, 0)
        self._moved_s = now_s
        self._stopped: tuple[float, int] | None = None  # since when, and its CPU time then
        self._pace: collections.deque[float] = collections.deque(maxlen=_KEPT)
        self._longest_s = 0.0

    def check(self, seen: Snapshot, state: str, now_s: float, cpu_ticks: int = 0) -> str:
        """Why the trainer counts as hung; empty while it does not.

        Args:
            seen: the newest record.
            state: the process's state as in /proc, ``T`` when stopped by a signal.
            now_s: the time.
            cpu_ticks: what the process has used of the CPU so far.
        """
        self._take(seen, now_s)
        if problem := self._why_stopped(state, now_s, cpu_ticks):
            return problem
        limit_s = self._limit_s(seen)
        idle_s = now_s - self._moved_s
        if limit_s is None or idle_s <= limit_s:
            return ""
        if seen.save_wait_since_ms:
            waited = f"waits for a save for {idle_s:.0f} s (limit {limit_s:.0f} s)"
            return f"{waited} after step {seen.step}"
        if seen.phase is Phase.TRAIN:
            return f"no step after step {seen.step} for {idle_s:.1f} s (limit {limit_s:.1f} s)"
        return f"in phase {seen.phase.value} for {idle_s:.0f} s (limit {limit_s:.0f} s)"

    def restart(self, now_s: float) -> None:
        """Begin to wait again, as if the trainer had just moved."""
        self._moved_s = now_s

    def _take(self, seen: Snapshot, now_s: float) -> None:
        before = self._seen
        mark = (seen.phase, seen.step, seen.committed_step, seen.save_wait_since_ms)
        if mark == before:
            return
        steps = seen.step - before[1]
        if before[0] is Phase.TRAIN is seen.phase and before[1] and steps > 0:
            self._pace.append((now_s - self._moved_s) / steps)
            self._longest_s = max(self._longest_s, now_s - self._moved_s)
        self._seen, self._moved_s = mark, now_s

    def _why_stopped(self, state: str, now_s: float, cpu_ticks: int) -> str:
        if state != "T":
            self._stopped = None
            return ""
        # One that is stopped and continued in turns may be seen stopped each time, but it runs.
        if self._stopped is None or self._stopped[1] != cpu_ticks:
            self._stopped = now_s, cpu_ticks
        stopped_s = now_s - self._stopped[0]
        if stopped_s <= STOPPED_LIMIT_S:
            return ""
        return f"its process is stopped (SIGSTOP) for {stopped_s:.1f} s"

    def _limit_s(self, seen: Snapshot) -> float | None:
        if seen.save_wait_since_ms:
            return _save_limit_s(seen)
        if seen.phase is not Phase.TRAIN:
            return PHASE_LIMIT_S.get(seen.phase)
        limits = self._limits
        if len(self._pace) < _NEEDED:
            return max(UNPACED_LIMIT_S, limits.min_s)
        pace_s = limits.factor * statistics.median(self._pace)
        return max(limits.min_s, pace_s, _PAUSE_FACTOR * self._longest_s)


def _save_limit_s(seen: Snapshot) -> float:
    if seen.save_wait_limit_ms >= 0:
        return seen.save_wait_limit_ms / 1000
    return max(SAVE_LIMIT_S, _SAVE_FACTOR * seen.commit_lag_ms / 1000)
