"""Times of the hosts of a simulated world in lock-step, with one host at fault or none.

A step: the host's own work (a tenth), then its devices, then two rounds in which everybody
waits for everybody. Devices go on while their host is stopped, as accelerators do. The noise
is a model of it (``bench.noise``), or was recorded (``bench.recorded``).
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
import time
from collections.abc import Iterator

import numpy as np

from bench.noise import OWN_SHARE, Floats, Modelled, Noise, Own
from tpujob_coordinator.stragglers import HostStep, Stragglers

_PROBE_MS, _ROUND_TRIP_MS, _CLOCK_ERROR_MS = 3.0, 0.8, 0.5


class Kind(enum.StrEnum):
    """What goes wrong on one host."""

    INPUT = "input"
    STEAL = "CPU steal"
    DEVICE = "device"
    NETWORK = "network delay"
    GC = "GC"
    SIGSTOP = "SIGSTOP"


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One host that makes steps take ``factor`` times as long."""

    kind: Kind
    factor: float
    host: int


@dataclasses.dataclass(slots=True)
class Moment:
    """What goes on in the world as a whole at one step; factors of its parts."""

    own: float = 1.0
    device: float = 1.0
    blocked_ms: float = 0.0  # by a save, on all hosts


class World:
    """Makes steps and tells a detector of them."""

    def __init__(
        self, hosts: int, step_ms: float, rng: np.random.Generator, noise: Noise | None = None
    ) -> None:
        self.hosts, self.step_ms, self._rng = hosts, step_ms, rng
        self._noise: Noise = noise or Modelled(hosts, rng)
        self._ready = np.zeros(hosts)  # when the last step's result was noticed
        self._clock = rng.uniform(-_CLOCK_ERROR_MS, _CLOCK_ERROR_MS, hosts)
        self._gc_every = int(rng.integers(1, 5))
        self._phase, self._period_ms = rng.uniform(), rng.uniform(0.3, 1.5) * step_ms
        self._stops: dict[float, float] = {}
        self._told_ms = 0.0
        self.step = 0
        self.told_s = 0.0  # what telling the detector has taken

    @property
    def elapsed_ms(self) -> float:
        """Simulated time."""
        return float(self._ready[0])

    def advance(self, watch: Stragglers[int], fault: Fault | None, now: Moment) -> None:
        """One step of all hosts; probes and round trips about once a second."""
        self.step += 1
        self._noise.step(self.step_ms)
        own = self._own(fault, now)
        arrived = self._ready + own.work + now.blocked_ms * self._noise.device()
        device = (1 - OWN_SHARE) * self.step_ms * now.device * self._noise.device()
        if fault and fault.kind is Kind.DEVICE:
            device[fault.host] += (fault.factor - 1) * self.step_ms
        if fault and fault.kind is Kind.SIGSTOP:
            begun, work = self._ready[fault.host], own.work[fault.host]
            arrived[fault.host] = self._after_stops(begun, work, fault)
        done = self._exchange(self._exchange(arrived + device, fault), fault)
        told = np.stack([arrived + self._clock, own.waited, done - arrived, own.paused], axis=1)
        begun = time.perf_counter()
        for host, (at, input_ms, wait_ms, gc_ms) in enumerate(told.tolist()):
            times = HostStep(at, 2 * _CLOCK_ERROR_MS, input_ms, wait_ms, gc_ms, now.blocked_ms)
            watch.stepped(host, self.step, times)
        self.told_s += time.perf_counter() - begun
        self._ready = done
        if fault and fault.kind is Kind.SIGSTOP:
            self._ready[fault.host] = self._after_stops(done[fault.host], 0.0, fault)
        if self._ready[0] - self._told_ms >= 1000:
            self._told_ms = self._ready[0]
            self._tell_others(watch, fault, now)

    def _own(self, fault: Fault | None, now: Moment) -> Own:
        own = self._noise.own(OWN_SHARE * self.step_ms * now.own, self.step_ms)
        if fault is None:
            return own
        extra_ms, host = (fault.factor - 1) * self.step_ms, fault.host
        if fault.kind is Kind.INPUT:
            late_ms = extra_ms * self._rng.lognormal(-0.02, 0.2)
            own.work[host] += late_ms
            own.waited[host] += late_ms
        elif fault.kind is Kind.STEAL:
            own.work[host] += extra_ms * self._rng.gamma(4.0, 0.25)
        elif fault.kind is Kind.GC and self.step % self._gc_every == 0:
            late_ms = self._gc_every * extra_ms * self._rng.lognormal(-0.02, 0.2)
            own.work[host] += late_ms
            own.paused[host] += late_ms
        return own

    def _exchange(self, ready: Floats, fault: Fault | None) -> Floats:
        """Everybody gets something from everybody; from a bad network it comes later."""
        latest = np.full(self.hosts, ready.max())
        if fault and fault.kind is Kind.NETWORK:
            delayed = ready[fault.host] + (fault.factor - 1) * self.step_ms
            others = np.arange(self.hosts) != fault.host
            latest[others] = np.maximum(latest[others], delayed)
        return latest

    def _after_stops(self, at: float, work_ms: float, fault: Fault) -> float:
        """When work that begins at ``at`` is done by a process that is stopped now and then."""
        stop_ms = self._stop_ms(fault.factor)
        return _run(at, work_ms, self._period_ms, stop_ms, self._phase * self._period_ms)

    def _stop_ms(self, factor: float) -> float:
        """Of each period, how long it is stopped to make steps take ``factor`` times as long."""
        if factor not in self._stops:
            low, high = 0.0, 0.97 * self._period_ms
            for _ in range(14):
                middle = (low + high) / 2
                slow = self._paced(middle) > factor * self.step_ms
                low, high = (low, middle) if slow else (middle, high)
            self._stops[factor] = high
        return self._stops[factor]

    def _paced(self, stop_ms: float) -> float:
        at, steps = 0.0, 300
        for number in range(steps):
            jitter = 1 + 0.1 * math.sin(number)  # or stops may keep in step with the steps
            begun = _run(at, 0.0, self._period_ms, stop_ms, 0.0)
            own = _run(begun, OWN_SHARE * self.step_ms * jitter, self._period_ms, stop_ms, 0.0)
            at = max(own, at + OWN_SHARE * self.step_ms) + (1 - OWN_SHARE) * self.step_ms
        return at / steps

    def _tell_others(self, watch: Stragglers[int], fault: Fault | None, now: Moment) -> None:
        probes = _PROBE_MS * now.device * self._noise.probe()
        trips = _ROUND_TRIP_MS * self._noise.trip()
        if fault and fault.kind is Kind.DEVICE:
            probes[fault.host] *= fault.factor
        if fault and fault.kind is Kind.NETWORK:
            trips[fault.host] += (fault.factor - 1) * self.step_ms
        for host, (probe_ms, trip_ms) in enumerate(
            zip(probes.tolist(), trips.tolist(), strict=True)
        ):
            watch.probed(host, probe_ms)
            watch.pinged(host, trip_ms)


def _run(at: float, work_ms: float, period_ms: float, stop_ms: float, offset_ms: float) -> float:
    """When a process that is stopped for the first ``stop_ms`` of each period has done its work."""
    running_ms = period_ms - stop_ms
    period, place = divmod(at - offset_ms, period_ms)
    periods, rest = divmod(max(0.0, place - stop_ms) + work_ms, running_ms)
    return max(at, offset_ms + (period + periods) * period_ms + stop_ms + rest)


def traps(rng: np.random.Generator) -> Iterator[Moment]:
    """A job without a fault on any host, for ever: what others take for one."""
    slow, compiling = Moment(), 0
    for step in itertools.count(1):
        if step % 600 == 0:  # the input store or the network of all is slow for a while, or not
            slow = Moment(own=rng.choice([1.0, 3.0, 8.0]), device=rng.choice([1.0, 1.0, 1.3, 2.0]))
        compiling = 3 if rng.random() < 1 / 2000 else max(0, compiling - 1)
        blocked_ms = 400.0 if step % 50 == 0 else 0.0
        yield Moment(slow.own * (20.0 if compiling else 1.0), slow.device, blocked_ms)
