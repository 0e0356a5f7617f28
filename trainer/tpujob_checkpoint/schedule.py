"""When to save, decided equally by all processes without asking each other every step.

At a *pulse*, every second or two, the leader tells the others what to do at this very step
and at which step the next pulse is. They are at that step too, or soon will be, so that
nothing has to be timed: a save on request, a snapshot, and leaving are agreed upon by
being told at a pulse.
"""

from __future__ import annotations

import dataclasses
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import tpujob
from tpujob_checkpoint.distributed import Bulletin, World
from tpujob_checkpoint.settings import Settings

#: Steps after which the pace of training is known well enough.
PACE_STEPS = 3
#: Seconds between pulses, where snapshots do not come more often.
PULSE_S = 2.0
#: Snapshots in memory may cost this share of the host's processor time.
COST_SHARE = 0.03


class Written(NamedTuple):
    """A snapshot in memory that is written, by one process or by all.

    Attributes:
        step: the step after which it was taken.
        took_s: from then until it was written, seconds; the training goes on meanwhile.
        cost_s: what the host's processors did for it, as seconds of all of them.
    """

    step: int = 0
    took_s: float = 0.0
    cost_s: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Due:
    """What to do after a step."""

    durable: bool = False  # a checkpoint
    local: bool = False  # a snapshot in memory
    leave: bool = False  # after this checkpoint the process is to exit

    @property
    def any(self) -> bool:
        """Whether the state is to be saved at all."""
        return self.durable or self.local


class SaveSchedule:
    """Saves every N steps, or every S seconds by the leader's clock, and when asked to."""

    def __init__(
        self,
        settings: Settings,
        world: World,
        *,
        start: int,
        last: int,
        last_snapshot: Callable[[], Written | None] = Written,
        wants_to_leave: Callable[[], bool] = lambda: False,
    ) -> None:
        """Begin to count.

        Args:
            settings: the intervals.
            world: who has to agree.
            start: the step from which training goes on.
            last: the step with which it ends; always saved.
            last_snapshot: in memory, the slowest process's; None: it is being written.
            wants_to_leave: whether this process has been asked to go.
        """
        self._settings, self._last, self._world = settings, last, world
        self._last_snapshot, self._wants_to_leave = last_snapshot, wants_to_leave
        self._bulletin = Bulletin(world, "pulse")
        self._last_pulse = (start, time.monotonic())
        self._next_pulse = start + PACE_STEPS
        self._durable_at = self._local_at = math.inf  # clocks start at the first pulse
        self._pause_s = settings.snapshot_s or math.inf  # between snapshots
        self._answered = 0
        self._has_told = False

    def due(self, step: int) -> Due:
        """What to do after ``step``; called once for every step, in order."""
        every = self._settings.interval_steps
        is_durable = step == self._last or bool(every and step % every == 0)
        asks = self._wants_to_leave()
        if asks and not self._has_told:
            self._has_told = True
            self._bulletin.raise_hand()
        if step < self._next_pulse and not (asks and self._world.num_processes == 1):
            return Due(durable=is_durable)
        orders = self._orders(step, is_durable) if self._world.is_leader else {}
        told = self._bulletin.told(step, orders)
        self._next_pulse = told["next"]
        leave = told["leave"] and step < self._last
        return Due(is_durable or told["durable"] or leave, told["local"] and not leave, leave)

    def _orders(self, step: int, is_durable: bool) -> dict[str, Any]:
        """What the leader tells at this pulse."""
        since_step, since = self._last_pulse
        now = time.monotonic()
        self._last_pulse = step, now
        pace_s = max((now - since) / max(1, step - since_step), 1e-6)
        asked = tpujob.save_request()
        is_asked = self._answered < asked.step <= step
        interval_s, is_written = self._interval_s(), self._is_written(pace_s)
        # Pulses are whole steps apart: half a step early is in time.
        is_durable |= is_asked or now - self._durable_at >= interval_s - pace_s / 2
        is_local = is_written and now - self._local_at >= self._pause_s - pace_s / 2
        is_first = self._durable_at == math.inf
        if is_durable or is_first:
            self._durable_at = now
        if is_local or is_first:
            self._local_at = now
        local_s = self._local_at + self._pause_s - now
        if not is_written:  # asked again then
            local_s = max(local_s, self._settings.snapshot_s / 4)
        until_s = min(PULSE_S, local_s, self._durable_at + interval_s - now)
        following = step + max(1, math.floor(until_s / pace_s + 1e-6))
        if step < asked.step:
            following = min(following, asked.step)
        self._answered = max(self._answered, asked.step if is_asked else 0)
        return {
            "next": following,
            "durable": is_durable,
            "local": is_local,
            "leave": self._bulletin.is_hand_raised() or (is_asked and asked.then_leave),
        }

    def _interval_s(self) -> float:
        told_s = tpujob.save_interval_s() if self._settings.interval == "auto" else None
        return self._settings.interval_s if told_s is None else told_s

    def _is_written(self, pace_s: float) -> bool:
        """Whether all processes have the last snapshot; what it took decides on the pause.

        A crash costs what has been trained since the last one that was written, and the step
        that was being made: the next one is begun so early that it is written in time.
        """
        if not self._settings.snapshot_s:
            return False
        last = self._last_snapshot()
        if last is not None:
            in_time_s = max(self._settings.snapshot_s - last.took_s - pace_s, last.took_s)
            self._pause_s = max(in_time_s, last.cost_s / COST_SHARE)
        return last is not None


@contextmanager
def noticing_sigterm() -> Iterator[threading.Event]:
    """An event that SIGTERM sets, instead of ending the process between two saves."""
    event = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: event.set())
    try:
        yield event
    finally:
        signal.signal(signal.SIGTERM, before)
