"""What a job's own timeline says about its saves and failures: a pure fold over events.

Only failures that threw training back to a durable checkpoint count: a graceful leave
that saved in time and a restart from memory lose nothing that more checkpoints would keep.
Which it was is known when the next world has restored.
"""

from __future__ import annotations

import dataclasses
import statistics

from tpujob_agent.protocol import Event, EventKind
from tpujob_operator.core.interval import PRIOR_RATE_PER_CHIP_S, Costs

#: Samples of each cost that are kept.
KEPT = 10
#: Experience loses half its weight in this long: fleets and programs change.
HALF_LIFE_MS = 7 * 86_400_000
#: The prior counts as this many failures.
PRIOR_FAILURES = 1.0

_NONE: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class FailureRate:
    """Failures and the training time they fell into, both fading with a half-life.

    The mean time between failures is that of a Gamma prior (one failure in the time that
    ``chips`` chips take for one, see ``PRIOR_RATE_PER_CHIP_S``) after this experience.
    """

    exposure_ms: float = 0.0
    failures: float = 0.0
    as_of_ms: int = 0

    def after(self, at_ms: int, *, trained_ms: int = 0, failures: int = 0) -> FailureRate:
        """The experience at ``at_ms``, with what came on top of it."""
        faded = 0.5 ** (max(0, at_ms - self.as_of_ms) / HALF_LIFE_MS) if self.as_of_ms else 1.0
        return FailureRate(
            self.exposure_ms * faded + trained_ms,
            self.failures * faded + failures,
            max(at_ms, self.as_of_ms),
        )

    def mtbf_s(self, chips: int) -> float:
        """Mean time between failures of a job of so many chips."""
        prior_s = PRIOR_FAILURES / (max(1, chips) * PRIOR_RATE_PER_CHIP_S)
        return (prior_s + self.exposure_ms / 1000) / (PRIOR_FAILURES + self.failures)


@dataclasses.dataclass(frozen=True, slots=True)
class Measures:
    """State of the fold. Times in milliseconds; newest samples last."""

    rate: FailureRate = FailureRate()
    blocked_ms: tuple[int, ...] = _NONE
    lag_ms: tuple[int, ...] = _NONE
    recovery_ms: tuple[int, ...] = _NONE
    start_ms: int = 0  # of the newest world, while no recovery has been seen
    step_ms: float = 0.0  # over the newest stretch of steps
    world_at_ms: int = 0  # when the newest world was formed; 0: it trains already
    lost_at_ms: int = 0  # onset of the loss it recovers from; 0: none
    lost_step: int = 0
    step: int = 0
    step_at_ms: int = 0
    committed_step: int = 0

    def apply(self, event: Event) -> Measures:
        """The measures after one event."""
        change = _CHANGES.get(event.kind)
        return change(self, event) if change else self

    def costs(self, chips: int) -> Costs | None:
        """What a save and a failure cost; None until a save has told its cost.

        Of saves the median, as single ones are slow for reasons of their own; of recoveries
        the mean, as a crash and a lost host take different times and each counts.
        """
        if not self.blocked_ms or not self.lag_ms:
            return None
        recovery_ms = statistics.fmean(self.recovery_ms) if self.recovery_ms else self.start_ms
        return Costs(
            blocked_s=statistics.median(self.blocked_ms) / 1000,
            lag_s=statistics.median(self.lag_ms) / 1000,
            recovery_s=recovery_ms / 1000,
            mtbf_s=self.rate.mtbf_s(chips),
        )


def _formed(measures: Measures, event: Event) -> Measures:
    if event.data.get("adopted"):
        return measures
    return dataclasses.replace(measures, world_at_ms=event.at_ms, step_at_ms=0)


def _lost(measures: Measures, event: Event) -> Measures:
    onset_ms = min(int(event.data["onsetAtMs"]), event.at_ms)
    return dataclasses.replace(
        measures,
        lost_at_ms=measures.lost_at_ms or onset_ms,
        lost_step=max(measures.lost_step, measures.step, int(event.data.get("step", 0))),
        step_at_ms=0,
    )


def _restored(measures: Measures, event: Event) -> Measures:
    step = int(event.data["step"])
    threw_back = measures.lost_at_ms and step < measures.lost_step
    changed = dataclasses.replace(measures, step=step, step_at_ms=0, lost_step=0)
    if not threw_back or step > measures.committed_step:  # the latter: out of memory
        return changed
    return dataclasses.replace(changed, rate=measures.rate.after(event.at_ms, failures=1))


def _progress(measures: Measures, event: Event) -> Measures:
    last, ended_ms = int(event.data["lastStep"]), min(int(event.data["endedAtMs"]), event.at_ms)
    begun_ms, first = measures.step_at_ms, measures.step
    changed = dataclasses.replace(measures, step=max(first, last), step_at_ms=ended_ms)
    if begun_ms and ended_ms > begun_ms:
        trained_ms = ended_ms - begun_ms
        step_ms = trained_ms / (last - first) if last > first else measures.step_ms
        rate = measures.rate.after(event.at_ms, trained_ms=trained_ms)
        changed = dataclasses.replace(changed, rate=rate, step_ms=step_ms)
    return _under_way(changed, ended_ms)


def _under_way(measures: Measures, ended_ms: int) -> Measures:
    """The first step of a world ends its start, and the recovery from the loss before it."""
    if not measures.world_at_ms:
        return measures
    recovery_ms = measures.recovery_ms
    if measures.lost_at_ms:
        recovery_ms = _kept(recovery_ms, ended_ms - measures.lost_at_ms)
    return dataclasses.replace(
        measures,
        recovery_ms=recovery_ms,
        start_ms=max(0, ended_ms - measures.world_at_ms),
        world_at_ms=0,
        lost_at_ms=0,
    )


def _committed(measures: Measures, event: Event) -> Measures:
    step = max(measures.committed_step, int(event.data["step"]))
    blocked_ms, lag_ms = event.data.get("blockedMs"), event.data.get("lagMs")
    if blocked_ms is None or lag_ms is None:  # the program does not tell
        return dataclasses.replace(measures, committed_step=step)
    return dataclasses.replace(
        measures,
        committed_step=step,
        blocked_ms=_kept(measures.blocked_ms, int(blocked_ms)),
        lag_ms=_kept(measures.lag_ms, int(lag_ms)),
    )


def _kept(samples: tuple[int, ...], newest: int) -> tuple[int, ...]:
    return (*samples, max(0, newest))[-KEPT:]


_CHANGES = {
    EventKind.GENERATION_STARTED: _formed,
    EventKind.LOSS: _lost,
    EventKind.RESTORED: _restored,
    EventKind.PROGRESS: _progress,
    EventKind.COMMITTED: _committed,
}
