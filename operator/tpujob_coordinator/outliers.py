"""Which of many hosts stands out from the others, and for how long: pure statistics.

One window of samples gives one value for each host, compared with the median of all
others (a mean would be drawn towards the outlier, and cannot be exceeded by three of
its deviations below eleven hosts). A window alone decides nothing.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

#: Samples that make one window.
WINDOW = 10
#: A host stands out if it is this many deviations above the others,
MOST_Z = 5.0
#: where the deviation is at least this share of their median: equal hosts have none.
LEAST_SPREAD = 0.02
#: Of so many windows a host must have stood out in that many.
WATCHED, NEEDED = 4, 3
#: It is over when so many windows in a row were below this ratio.
CALM, CALM_RATIO = 10, 1.05
_MAD_TO_SIGMA = 1.4826
#: Standard error of a median beside that of the mean, for a normal distribution.
_MEDIAN_ERROR = 1.2533
#: Above this many hosts, one of them moves the spread of all by next to nothing.
_MANY = 256


@dataclasses.dataclass(frozen=True, slots=True)
class Score:
    """How many times the others' value a host's is, and whether that is too much."""

    ratio: float
    z: float = 0.0  # deviations above them; 0: it is not too large, whatever its deviation

    @property
    def is_out(self) -> bool:
        """Whether this window alone says so."""
        return self.z > MOST_Z


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """What a value has to exceed to stand out."""

    ratio: float
    least: float = 0.0  # differences up to this do not count, whatever their ratio
    noise: float = 0.0  # how far equal hosts may be apart by chance: one standard error

    def score(self, value: float, usual: float, spread: float) -> Score:
        """The score of a value where ``usual`` is usual, give or take ``spread``."""
        if usual <= 0:
            return Score(1.0)
        if value <= self.ratio * usual or value - usual <= self.least:
            return Score(value / usual)
        return Score(value / usual, (value - usual) / max(spread, self.noise, LEAST_SPREAD * usual))


def scores(values: Mapping[K, float], bounds: Bounds) -> dict[K, Score]:
    """The score of each host among at least two, from one value for each of them."""
    ordered = sorted(values.values())
    of_all = spread_of(ordered) if len(ordered) > _MANY else None
    return {key: _score(value, ordered, bounds, of_all) for key, value in values.items()}


def _score(value: float, ordered: Sequence[float], bounds: Bounds, spread: float | None) -> Score:
    place = bisect.bisect_left(ordered, value)
    others = _median_without(ordered, place)
    if value <= bounds.ratio * others:
        spread = 0.0  # it does not matter
    elif spread is None:
        spread = spread_of([*ordered[:place], *ordered[place + 1 :]])
    return bounds.score(value, others, spread)


def _median_without(ordered: Sequence[float], place: int) -> float:
    """The median of all but one, in no time."""
    count = len(ordered) - 1
    low, high = (count - 1) // 2, count // 2
    return (ordered[low + (low >= place)] + ordered[high + (high >= place)]) / 2


def spread_of(values: Sequence[float]) -> float:
    """A standard deviation that outliers do not move."""
    middle = statistics.median(values)
    return _MAD_TO_SIGMA * float(statistics.median(abs(value - middle) for value in values))


def error_of_median(values: Sequence[float]) -> float:
    """Standard error of the median of these, as they scatter."""
    return float(_MEDIAN_ERROR * spread_of(values) / len(values) ** 0.5)


class Persistence:
    """Whether something that is judged window by window lasts.

    Most windows have to stand out; or all are too large, and stand out together: where the noise
    is large, no window alone does, and the mean of four scatters half as much as each.
    """

    def __init__(self) -> None:
        self._seen: collections.deque[float] = collections.deque(maxlen=WATCHED)
        self._calm = 0
        self.is_raised = False

    def see(self, score: Score) -> None:
        """Take the next window's score."""
        self._seen.append(score.z)
        self._calm = self._calm + 1 if score.ratio < CALM_RATIO else 0
        alone = sum(z > MOST_Z for z in self._seen)
        if alone >= NEEDED or self._are_all_out():
            self.is_raised = True
        elif self._calm >= CALM:
            self.is_raised = False

    def _are_all_out(self) -> bool:
        """Whether all windows are too large, and stand out together."""
        return len(self._seen) == WATCHED and min(self._seen) > 0 and self._mean_z() > MOST_Z

    def _mean_z(self) -> float:
        """Of the windows' mean, in deviations of it: it scatters less than each of them."""
        return sum(self._seen) / math.sqrt(len(self._seen))

    @property
    def is_suspected(self) -> bool:
        """Whether a window that counts stood out by itself."""
        return self.is_raised or max(self._seen) > MOST_Z

    @property
    def is_over(self) -> bool:
        """Whether nothing that counts was too large."""
        return not self.is_raised and not any(self._seen)


class Verdicts(Generic[K]):
    """The persistence of many hosts; those that never were too large cost nothing."""

    def __init__(self) -> None:
        self._lasting: dict[K, Persistence] = {}
        self.ratios: dict[K, float] = {}  # of the newest window

    def see(self, judged: Mapping[K, Score]) -> None:
        """Take the scores of one window."""
        self.ratios = {key: score.ratio for key, score in judged.items()}
        for key, score in judged.items():
            if score.z > 0 or key in self._lasting:
                self._lasting.setdefault(key, Persistence()).see(score)
        for key in [key for key, known in self._lasting.items() if known.is_over]:
            del self._lasting[key]

    @property
    def raised(self) -> dict[K, float]:
        """Hosts that have stood out for long enough, with their newest ratio."""
        return {key: self.ratios.get(key, 1.0) for key, p in self._lasting.items() if p.is_raised}

    @property
    def are_any_suspected(self) -> bool:
        """Whether a host stood out in one of the windows that count."""
        return any(known.is_suspected for known in self._lasting.values())


@dataclasses.dataclass(slots=True)
class _Excursion:
    """A stretch in which a host was late more often than it should."""

    height: float = 0.0
    lost: float = 0.0  # steps' worth of time
    steps: int = 0
    is_raised: bool = False


class Pauses(Generic[K]):
    """Finds hosts that are late now and then, which medians do not see: a cumulative sum.

    Every step adds the host's lateness, as a share of a step and at most ``_MOST``, minus
    what is usual. Steps of which 3 % are late by any amount, independently of each other,
    reach ``_ALARM`` once in 10^9 excursions. Where the others are late by turns as well, as with
    an input store that is slow now for one and now for another, twice their mean is usual.
    """

    _USUAL, _MOST, _ALARM = 0.03, 0.25, 2.0
    _CEILING = 4.0  # so that it is over in a hundred calm steps

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._known: dict[K, _Excursion] = {}

    def see(self, late: Mapping[K, float]) -> None:
        """Take each host's lateness for one step, as a share of a step."""
        counted = {host: min(max(0.0, share), self._MOST) for host, share in late.items()}
        of_all = sum(counted.values())
        for host, share in late.items():
            known = self._known.get(host)
            if known is None and share <= self._USUAL:
                continue
            of_others = (of_all - counted[host]) / max(1, len(late) - 1)
            usual = max(self._USUAL, 2 * of_others)
            known = known or self._known.setdefault(host, _Excursion())
            known.height = min(known.height + min(share, self._MOST) - usual, self._CEILING)
            known.lost, known.steps = known.lost + max(0.0, share), known.steps + 1
            if known.height <= 0:
                del self._known[host]
            elif known.height >= self._ALARM and self._ratio(known) > self._limit:
                known.is_raised = True

    @staticmethod
    def _ratio(known: _Excursion) -> float:
        return 1 + known.lost / known.steps

    @property
    def raised(self) -> dict[K, float]:
        """Hosts that are late often enough, with how many times as long a step takes by it."""
        return {host: self._ratio(known) for host, known in self._known.items() if known.is_raised}
