"""Unsettled step time: stretches of steps that no committed checkpoint covers yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from tpujob_operator.core.timetypes import TimeType

#: More segments than this are merged, so that a job that never saves stays small in status.
MOST_SEGMENTS = 128
#: Weight of the newest stretch of steps in the mean step time of whole worlds.
_SMOOTHING = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """Time of the steps ``first_step``…``last_step``, in milliseconds by what it was spent on."""

    first_step: int
    last_step: int
    productive_ms: int = 0
    input_wait_ms: int = 0
    checkpoint_stall_ms: int = 0
    degraded_ms: int = 0  # above what the steps take in a world of the wanted size
    chip_ms: int = 0  # of all chips held meanwhile

    @property
    def total_ms(self) -> int:
        """All of the segment's time."""
        waits_ms = self.input_wait_ms + self.checkpoint_stall_ms
        return self.productive_ms + self.degraded_ms + waits_ms

    def by_type(self) -> Iterator[tuple[TimeType, int]]:
        """The segment's time as it is booked once a checkpoint covers it."""
        yield TimeType.PRODUCTIVE, self.productive_ms
        yield TimeType.INPUT_WAIT, self.input_wait_ms
        yield TimeType.CHECKPOINT_STALL, self.checkpoint_stall_ms
        if self.degraded_ms:
            yield TimeType.DEGRADED, self.degraded_ms

    def chips_by_type(self) -> Iterator[tuple[TimeType, int]]:
        """The chips' time in the same proportions; what does not divide is productive."""
        waits = [(kind, ms) for kind, ms in self.by_type() if kind is not TimeType.PRODUCTIVE]
        shares = [(kind, self.chip_ms * ms // max(1, self.total_ms)) for kind, ms in waits]
        yield TimeType.PRODUCTIVE, self.chip_ms - sum(share for _, share in shares)
        yield from shares

    def stretched_to(self, span_ms: int) -> Segment:
        """The segment lasting exactly ``span_ms``: reported waits are bounded by it."""
        stall = min(max(0, self.checkpoint_stall_ms), span_ms)
        wait = min(max(0, self.input_wait_ms), span_ms - stall)
        return dataclasses.replace(
            self,
            productive_ms=span_ms - stall - wait,
            input_wait_ms=wait,
            checkpoint_stall_ms=stall,
        )

    @property
    def steps(self) -> int:
        """Number of its steps."""
        return self.last_step - self.first_step + 1

    def judged(self, full_step_ms: float, share: float) -> Segment:
        """The segment of a small world: productive is what the steps take in a whole one.

        While that has not been measured (0), a world is as fast as its share of the slices.
        """
        return self.with_productive(self.steps * full_step_ms or self.productive_ms * share)

    def mean_step_ms(self, mean_ms: float) -> float:
        """The mean of a step's productive time with those of this segment; 0: none before."""
        newest_ms = self.productive_ms / self.steps
        return mean_ms + _SMOOTHING * (newest_ms - mean_ms) if mean_ms else newest_ms

    def with_productive(self, limit_ms: float) -> Segment:
        """At most so much of the productive time stays so; the rest of it is degraded."""
        productive_ms = min(self.productive_ms, max(0, round(limit_ms)))
        degraded_ms = self.degraded_ms + self.productive_ms - productive_ms
        return dataclasses.replace(self, productive_ms=productive_ms, degraded_ms=degraded_ms)

    def cut(self, step: int) -> tuple[Segment, Segment]:
        """The parts up to ``step`` and after it, time shared out by the number of steps."""
        head = step - self.first_step + 1
        parts = tuple(ms * head // self.steps for ms in self._parts)
        rest = tuple(ms - part for ms, part in zip(self._parts, parts, strict=True))
        return Segment(self.first_step, step, *parts), Segment(step + 1, self.last_step, *rest)

    @property
    def _parts(self) -> tuple[int, ...]:
        waits = (self.input_wait_ms, self.checkpoint_stall_ms)
        return (self.productive_ms, *waits, self.degraded_ms, self.chip_ms)


def split(segments: Iterable[Segment], step: int) -> tuple[list[Segment], tuple[Segment, ...]]:
    """Segments of steps up to ``step``, and those after it."""
    done: list[Segment] = []
    rest: list[Segment] = []
    for segment in segments:
        if segment.last_step <= step:
            done.append(segment)
        elif segment.first_step > step:
            rest.append(segment)
        else:
            head, tail = segment.cut(step)
            done.append(head)
            rest.append(tail)
    return done, tuple(rest)


def compact(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """The same segments, neighbours merged in pairs while there are too many."""
    if len(segments) <= MOST_SEGMENTS:
        return tuple(segments)
    pairs = [segments[i : i + 2] for i in range(0, len(segments), 2)]
    return tuple(_merged(pair) for pair in pairs)


def _merged(pair: Sequence[Segment]) -> Segment:
    return Segment(
        first_step=min(s.first_step for s in pair),
        last_step=max(s.last_step for s in pair),
        productive_ms=sum(s.productive_ms for s in pair),
        input_wait_ms=sum(s.input_wait_ms for s in pair),
        checkpoint_stall_ms=sum(s.checkpoint_stall_ms for s in pair),
        degraded_ms=sum(s.degraded_ms for s in pair),
        chip_ms=sum(s.chip_ms for s in pair),
    )
