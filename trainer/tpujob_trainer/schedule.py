"""When to save, decided equally by all processes without asking each other every step."""

from __future__ import annotations

import math
import time

import tpujob
from tpujob_trainer.config import CheckpointConfig
from tpujob_trainer.distributed import World, told_by_leader

#: Steps after which the pace of training is known well enough.
PACE_STEPS = 3


class SaveSchedule:
    """Saves every N steps, or every S seconds by the leader's clock.

    Seconds become steps: at each save the leader turns its measured pace into the
    number of the next step to save at and tells the others, who are at that same
    step too.
    """

    def __init__(self, config: CheckpointConfig, world: World, *, start: int, last: int) -> None:
        self._config, self._world, self._last = config, world, last
        self._since_step, self._since = start, time.monotonic()
        every = config.interval_steps
        self._next = (start // every + 1) * every if every else start + PACE_STEPS
        self._measuring = every is None

    def is_due(self, step: int) -> bool:
        """Whether to save after ``step``; called once for every step, in order."""
        due = step == self._last or tpujob.should_save(step)
        if step < self._next:
            return due
        due = due or not self._measuring
        self._next = self._following(step)
        self._measuring = False
        return due

    def _following(self, step: int) -> int:
        every = self._config.interval_steps
        if every:
            return step + every
        now = time.monotonic()
        pace_s = (now - self._since) / max(1, step - self._since_step)
        self._since_step, self._since = step, now
        steps = max(1, math.floor(self._config.interval_s / max(pace_s, 1e-6)))
        return int(told_by_leader(self._world, f"save-at/{step}", step + steps))
