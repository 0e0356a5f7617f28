"""Who holds up a world that runs: stragglers by name, and slowness that is nobody's.

Hosts in lock-step all take as long as the slowest, so that a step's time names nobody.
What differs is who arrives late for it, whose own devices are slow at work without the
others, and whose network is. Each is compared as what a step would take if it depended
on that host alone: a healthy step, and the host's excess over the others. The figures
behind the rules are in ``docs/benchmarks.md``.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Generic

from tpujob_coordinator.outliers import (
    WINDOW,
    Bounds,
    K,
    Pauses,
    Score,
    Verdicts,
    error_of_median,
    scores,
)
from tpujob_coordinator.pace import Pace, Parts

#: Differences up to this, in milliseconds, are those of clocks and wake-ups.
LEAST_MS = 3.0
#: Steps of which some hosts have not told yet.
_PENDING_ROWS = 64
#: However late a host is, a step takes at least this share of its time without it.
_LEAST_STEP = 0.1
#: Values that say how it is at present.
_NEWEST = 3
#: Weight of the windows before in what explains a host's lateness.
_FADE = 0.7
#: Running medians that make the pace of a host with one peer only.
_STABLE = 4


@dataclasses.dataclass(frozen=True, slots=True)
class HostStep:
    """One step on one host; milliseconds, ``arrived`` on the coordinator's clock."""

    arrived: float
    clock_error: float = 0.0  # how far off ``arrived`` may be
    input: float = 0.0
    wait: float = 0.0
    gc: float = 0.0
    save: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Straggler:
    """A host that holds up the others."""

    signal: str  # what it shows in: one of SIGNALS
    cause: str  # input, gc, save, host, device, network
    ratio: float  # a step takes so many times as long for it


class Stragglers(Generic[K]):
    """Watches one world. Hosts that tell nothing are not judged, nor are the others then."""

    def __init__(self, hosts: Collection[K], limit: float) -> None:
        self._hosts, self._limit = frozenset(hosts), limit
        self._pending: dict[int, dict[K, HostStep]] = {}
        self._rows: dict[int, _Row[K]] = {}
        self._before: tuple[int, float] | None = None  # newest step of the last window
        self._step_ms = 0.0  # that a step takes if nobody is late; 0: not known
        self._late: dict[K, list[float]] = {}  # fading sums: late, and by each of _SPENT
        self._probes, self._round_trips = _Series(self._hosts), _Series(self._hosts)
        self._own_paces: dict[K, _OwnPace] = {}
        self.verdicts: dict[str, Verdicts[K]] = {name: Verdicts() for name in SIGNALS}
        self._pauses: Pauses[K] = Pauses(limit)
        self.pace = Pace(limit)

    # ---- samples

    def stepped(self, host: K, step: int, told: HostStep) -> None:
        """One host tells of one step; a step counts when all have told of it."""
        row = self._pending.setdefault(step, {})
        row[host] = told
        if len(row) == len(self._hosts):
            del self._pending[step]
            self._rows[step] = _Row.of(row)
        elif len(self._pending) > _PENDING_ROWS:
            del self._pending[min(self._pending)]
        if len(self._rows) >= WINDOW:
            self._judge_steps()

    def probed(self, host: K, probe_ms: float) -> None:
        """A fixed piece of work on a host's own devices took this long."""
        if window := self._probes.add(host, probe_ms):
            self._see("device", self._score_probes(window))

    def pinged(self, host: K, round_trip_ms: float) -> None:
        """A message to a host and back took this long."""
        window = self._round_trips.add(host, round_trip_ms)
        if window and self._step_ms:
            self._see("network", self._excess_scores(_middles(window), _noise(window)))

    # ---- judgement

    @property
    def stragglers(self) -> dict[K, Straggler]:
        """Those who hold up the others now, by the signal in which it shows most."""
        found: dict[K, Straggler] = {}
        spared = self._held_up_by_network()
        raised = [(signal, verdicts.raised) for signal, verdicts in self.verdicts.items()]
        for signal, hosts in [*raised, ("arrival", self._pauses.raised)]:
            for host, ratio in hosts.items():
                is_late = signal == "arrival"
                if is_late and host in spared:
                    continue
                cause = self._cause(host) if is_late else signal
                if host not in found or ratio > found[host].ratio:
                    found[host] = Straggler(signal, cause, ratio)
        return found

    def _held_up_by_network(self) -> Collection[K]:
        """Of two hosts, the one that hears the other late is late too, by no fault of its own."""
        if len(self._hosts) != 2:
            return ()
        one, other = self._hosts
        ahead_ms = self._round_trips.newest(one) - self._round_trips.newest(other)
        return () if abs(ahead_ms) <= LEAST_MS else (other,) if ahead_ms > 0 else (one,)

    def _cause(self, host: K) -> str:
        """What explains at least half of a host's lateness."""
        spent = self._late.get(host)
        if spent is None:
            return "host"
        late, *parts = spent
        largest = max(zip(parts, _SPENT, strict=True))
        return largest[1] if largest[0] >= late / 2 else "host"

    def _see(self, signal: str, judged: dict[K, Score]) -> None:
        self.verdicts[signal].see(judged)

    def _judge_steps(self) -> None:
        steps = sorted(self._rows)
        rows = [self._rows[step] for step in steps]
        marks = [*([self._before] if self._before else []), *((s, self._rows[s].at) for s in steps)]
        self._before, self._rows = marks[-1], {}
        spans = _spans(marks)
        late = {host: [row.late[host] for row in rows] for host in self._hosts}
        middles = _middles(late)
        step_ms = statistics.median(spans) if spans else 0.0
        if step_ms <= 0:
            return
        self._step_ms = _without(step_ms, middles.values())
        self._remember(rows)
        self._see("arrival", self._excess_scores(middles, _noise(late)))
        for row in rows:
            self._pauses.see({host: row.unsaved(host) / self._step_ms for host in self._hosts})
        are_suspected = bool(self._pauses.raised) or any(
            verdicts.are_any_suspected for verdicts in self.verdicts.values()
        )
        self.pace.see(step_ms, Parts.of([row.parts for row in rows]), is_a_host=are_suspected)

    def _remember(self, rows: list[_Row[K]]) -> None:
        for host in self._hosts:
            late = sum(max(0.0, row.late[host]) for row in rows)
            by = [sum(row.by[name][host] for row in rows) for name in _SPENT]
            before = self._late.get(host, [0.0] * (1 + len(by)))
            self._late[host] = [_FADE * a + b for a, b in zip(before, [late, *by], strict=True)]

    def _excess_scores(self, values: Mapping[K, float], noise: float) -> dict[K, Score]:
        middle = min(values.values()) if len(values) == 2 else statistics.median(values.values())
        whole = {host: self._step_ms + value - middle for host, value in values.items()}
        return scores(whole, Bounds(self._limit, LEAST_MS, noise))

    def _score_probes(self, window: Mapping[K, list[float]]) -> dict[K, Score]:
        values, bounds = _middles(window), Bounds(self._limit, noise=_noise(window))
        if len(values) > 2:
            return scores(values, bounds)
        # Of two, nobody knows which one is as it should be: each is compared with its own best.
        own = {
            h: self._own_paces.setdefault(h, _OwnPace()).score(v, bounds) for h, v in values.items()
        }
        are_all = all(score.ratio > self._limit for score in own.values())
        return {h: dataclasses.replace(s, z=0.0) for h, s in own.items()} if are_all else own


SIGNALS = ("arrival", "device", "network")


@dataclasses.dataclass(frozen=True, slots=True)
class _Row(Generic[K]):
    """One step of all hosts."""

    at: float  # when the hosts arrived, for the most part
    late: dict[K, float]
    by: dict[str, dict[K, float]]  # of the lateness: as far as each of _SPENT explains it
    parts: Parts

    def unsaved(self, host: K) -> float:
        """Lateness, but for that of saves: they are meant to be, and one host may do more."""
        return self.late[host] - self.by["save"][host]

    @classmethod
    def of(cls, told: Mapping[K, HostStep]) -> _Row[K]:
        arrivals = [step.arrived for step in told.values()]
        middle = statistics.median(arrivals)
        # Of two hosts, one arrives first and is not late.
        zero = min(arrivals) if len(arrivals) == 2 else middle
        late = {host: _certain(s.arrived - zero, s.clock_error) for host, s in told.items()}
        spent: dict[str, dict[K, float]] = {}
        middles: dict[str, float] = {}
        for name, get in _SPENT.items():
            values = {host: get(step) for host, step in told.items()}
            middles[name] = statistics.median(values.values())
            spent[name] = {
                host: max(0.0, min(value - middles[name], late[host]))
                for host, value in values.items()
            }
        wait = statistics.median(step.wait for step in told.values())
        parts = Parts(input=middles["input"], gc=middles["gc"], save=middles["save"], wait=wait)
        return cls(middle, late, spent, parts)


_SPENT: dict[str, Callable[[HostStep], float]] = {
    "input": lambda step: step.input,
    "gc": lambda step: step.gc,
    "save": lambda step: step.save,
}


def _certain(difference: float, error: float) -> float:
    """What remains of a difference between clocks, whatever their error."""
    return max(0.0, difference - error) if difference > 0 else min(0.0, difference + error)


def _spans(marks: list[tuple[int, float]]) -> list[float]:
    """Milliseconds a step, between each two of the steps that are known."""
    pairs = itertools.pairwise(marks)
    return [(b - a) / (after - before) for (before, a), (after, b) in pairs if after > before]


def _without(step_ms: float, late: Iterable[float]) -> float:
    """What a step would take without the latest host."""
    return max(step_ms - max(late), _LEAST_STEP * step_ms)


def _middles(window: Mapping[K, list[float]]) -> dict[K, float]:
    return {host: statistics.median(values) for host, values in window.items()}


def _noise(window: Mapping[K, list[float]]) -> float:
    """How far the hosts' medians may be apart by chance."""
    return statistics.median(error_of_median(values) for values in window.values())


class _Series(Generic[K]):
    """Values that hosts tell at times of their own, until there is a window of each."""

    def __init__(self, hosts: Collection[K]) -> None:
        self._values: dict[K, deque[float]] = {host: deque(maxlen=WINDOW) for host in hosts}
        self._newest: dict[K, deque[float]] = {host: deque(maxlen=_NEWEST) for host in hosts}
        self._short = len(self._values)  # hosts whose window is not full

    def add(self, host: K, value: float) -> dict[K, list[float]] | None:
        """One more value; the window of all, when it is full."""
        values = self._values.get(host)
        if values is None:
            return None
        self._short -= len(values) == WINDOW - 1
        values.append(value)
        self._newest[host].append(value)
        if self._short:
            return None
        window = {key: list(known) for key, known in self._values.items()}
        for known in self._values.values():
            known.clear()
        self._short = len(self._values)
        return window

    def newest(self, host: K) -> float:
        """The median of the last few values; 0: there is none."""
        return statistics.median(self._newest[host] or [0.0])


class _OwnPace:
    """The best that a host has shown for a while."""

    def __init__(self) -> None:
        self._newest: deque[float] = deque(maxlen=_STABLE)
        self._best = float("inf")

    def score(self, value: float, bounds: Bounds) -> Score:
        """How far a window is from the best."""
        self._newest.append(value)
        if len(self._newest) == _STABLE:
            self._best = min(self._best, statistics.median(self._newest))
        usual = self._best if self._best < float("inf") else value
        return bounds.score(value, usual, 0.0)
