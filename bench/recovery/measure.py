"""What a recovery was, from the lines that were printed around it: pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from bench.recovery.lines import Line


@dataclasses.dataclass(frozen=True, slots=True)
class Recovery:
    """One fault and what followed; None: not within the limit."""

    system: str
    fault: str
    #: Seconds from the fault to the first finished step of the world that went on.
    first_step_s: float | None
    #: Seconds from the fault to a step that had never been finished before.
    new_step_s: float | None
    #: Steps that were finished before the fault, or after it by the old world, and done again.
    lost_steps: int | None
    limit_s: float
    load: float  # 1-minute average when the fault was made
    noticed_s: float | None = None  # from the fault until the operator's coordinator knew


def times(lines: Sequence[Line], at: float) -> tuple[float | None, float | None, int | None]:
    """Seconds to the first step after a fault and to the first new one, and the steps lost."""
    begun = next((line for line in lines if line.is_begin and line.at > at), None)
    if begun is None:
        return None, None, None
    reached = max((line.step for line in lines if line.at < begun.at), default=0)
    lost = max(0, reached - begun.step + 1)
    after = (line for line in lines if line.at >= begun.at and line.step > reached)
    new = next(after, None)
    return begun.at - at, (new.at - at) if new else None, lost


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def newest(lines: Sequence[Line]) -> int:
    """The newest step of the present world; 0: it has finished none."""
    begins = [number for number, line in enumerate(lines) if line.is_begin]
    return lines[-1].step if begins else 0


def is_ripe(lines: Sequence[Line], save_every: int) -> bool:
    """Whether half an interval has gone by since a save of the present world.

    A fault then costs what it costs on the average.
    """
    begins = [line for line in lines if line.is_begin]
    step = newest(lines)
    since_save = step % save_every
    has_saved = bool(begins) and step - since_save > begins[-1].step + save_every // 2
    return has_saved and 0.4 * save_every <= since_save <= 0.7 * save_every
