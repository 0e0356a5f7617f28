"""What the agent does about a trainer that hangs: stacks first, then the kill."""

from __future__ import annotations

import time
from pathlib import Path

from tpujob.record import Snapshot
from tpujob_agent import processes
from tpujob_agent.stacks import Question
from tpujob_agent.watchdog import HangLimits, Watchdog

#: The coordinator, which sees all stacks, decides who is to blame; without one, we end it.
DECISION_S = 10.0
_STATE_INTERVAL_S = 0.5


class Stalls:
    """The watch over one trainer process."""

    def __init__(self, limits: HangLimits, stacks: Path) -> None:
        stacks.unlink(missing_ok=True)
        self._stacks = stacks
        self._watchdog = Watchdog(limits, time.monotonic())
        self._question: Question | None = None
        self._state_s = self._stalled_s = 0.0
        self.state, self._cpu_ticks = "", 0  # of the process, as in /proc
        self.reason = ""  # why it counts as hung
        self.answer = ""  # its stacks

    def look(self, seen: Snapshot, pid: int) -> None:
        """Draw conclusions from a new look at the record; ``pid`` 0: not forked yet."""
        now_s = time.monotonic()
        if pid and now_s - self._state_s >= _STATE_INTERVAL_S:
            self._state_s = now_s
            self.state, self._cpu_ticks = processes.state_of(pid)
        if not self.reason:
            self.reason = self._watchdog.check(seen, self.state, now_s, self._cpu_ticks)
            if self.reason:
                self._stalled_s = now_s
                self.ask(pid)
        if self._question:
            self.answer = self._question.look(now_s)

    def ask(self, pid: int) -> None:
        """Have the trainer write down where its threads are; asked once an alarm."""
        if pid and self._question is None:
            self._question = Question(pid, self._stacks, time.monotonic())

    def excuse(self) -> None:
        """It waits for another host, which is no hang: watch it from now on."""
        if self.reason:
            self._watchdog.restart(time.monotonic())
        self.reason = self.answer = ""
        self._question = None  # the next alarm asks again

    @property
    def is_overdue(self) -> bool:
        """Whether nobody has ended the hung trainer in time."""
        return bool(self.reason) and time.monotonic() - self._stalled_s >= DECISION_S

    def close(self) -> None:
        """Remove the file."""
        self._stacks.unlink(missing_ok=True)
