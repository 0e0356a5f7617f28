"""Steps and saves of a world that trains, as arithmetic: nothing happens between saves."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Saving:
    """A save under way. Times in milliseconds."""

    step: int
    durable_at_ms: int
    blocked_ms: int
    lag_ms: int


@dataclasses.dataclass(slots=True)
class Training:
    """All processes of one world, in lock-step. Times in milliseconds since the epoch."""

    first_step: int
    ended_ms: int  # when ``step`` had finished; at first the first step's end
    step_ms: int
    blocked_ms: int  # by one save
    lag_ms: int  # from its beginning until it is durable
    step: int = dataclasses.field(init=False)  # of the last save, or the first step
    resumed_ms: int = dataclasses.field(init=False)  # when the step after it began
    total_blocked_ms: int = dataclasses.field(default=0, init=False)
    saving: Saving | None = dataclasses.field(default=None, init=False)
    committed: Saving | None = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        self.step, self.resumed_ms = self.first_step, self.ended_ms

    def reached(self, now_ms: int) -> tuple[int, int]:
        """The last finished step and when it ended."""
        done = max(0, now_ms - self.resumed_ms) // self.step_ms
        return (self.step + done, self.resumed_ms + done * self.step_ms if done else self.ended_ms)

    def time_of(self, step: int) -> int:
        """When a step to come will have ended, if nothing is saved before."""
        return self.resumed_ms + max(0, step - self.step) * self.step_ms

    def next_save_ms(self, interval_ms: int) -> int:
        """When the save after the last one begins: at the end of a step."""
        steps = max(1, round((interval_ms - self.blocked_ms) / self.step_ms))
        return self.time_of(self.step + steps)

    def save(self, now_ms: int) -> Saving:
        """Save the step that has just ended; waits for the save before."""
        self.commit(now_ms)
        step, ended_ms = self.reached(now_ms)
        wait_ms = max(0, self.saving.durable_at_ms - now_ms) if self.saving else 0
        self.commit(now_ms + wait_ms)
        blocked_ms = wait_ms + self.blocked_ms
        self.step, self.ended_ms, self.resumed_ms = step, ended_ms, now_ms + blocked_ms
        self.total_blocked_ms += blocked_ms
        durable_at_ms = now_ms + wait_ms + self.lag_ms
        self.saving = Saving(step, durable_at_ms, blocked_ms, wait_ms + self.lag_ms)
        return self.saving

    def commit(self, now_ms: int) -> None:
        """What has become durable by now."""
        if self.saving and self.saving.durable_at_ms <= now_ms:
            self.committed, self.saving = self.saving, None
