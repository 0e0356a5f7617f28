"""Noise of real processes in lock-step: recorded once, and drawn from in blocks.

Four processes take steps together: decoding text, work for the garbage collector, a product of
matrices that stands for the devices, a smaller one that is the probe, and a round trip of a
message. Each is timed where it happens. Hosts have cores of their own and these processes have
not: each works in its own part of a step, while the others sleep, and before other programs
where it may. The simulation draws stretches of it by time, so that what lasts survives, and up to
as many hosts as were recorded share the time, so that what they have in common does. The pauses
of the garbage collector are drawn by steps, on all hosts the same one: what a program allocates
goes by its steps, and equal programs collect at the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.figures import machine
from bench.noise import OWN_SHARE, Floats, Own

#: What is kept of each step of each host, in milliseconds; input and gc are parts of own.
PARTS = ("own", "input", "gc", "device", "probe", "trip")
FILE = Path(__file__).parent / "data" / "hosts.npz"
HOSTS, STEPS = 4, 1500
#: A step's part for each host.
_TURN_S = 0.025
#: A stretch that is drawn, on average.
_BLOCK_MS = 30_000
_DEVICE, _PROBE = 320, 256  # widths of the matrices
_FIRST = 50  # steps in which caches and clocks settle


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    """Times by part, step and host, and where they come from."""

    ms: NDArray[np.float32]
    period_ms: float  # from one step to the next
    about: str

    def save(self, path: Path) -> None:
        """Write it; three digits are enough."""
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = self.ms.astype(np.float16)
        np.savez_compressed(path, ms=kept, period_ms=self.period_ms, about=self.about)

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Inverse of ``save``."""
        with np.load(path) as stored:
            ms = stored["ms"].astype(np.float32)
            return cls(ms, float(stored["period_ms"]), str(stored["about"]))


class Recorded:
    """Noise as it was recorded; of more hosts than that has, each is at a time of its own."""

    def __init__(self, recording: Recording, hosts: int, rng: np.random.Generator) -> None:
        self._rng = rng
        own, spent, paused, *rest = recording.ms.astype(np.float64)
        usual_ms = np.median(own)
        self._work, self._paused = (own - paused) / usual_ms, paused / usual_ms
        self._input_share = np.minimum(1.0, spent / np.maximum(own - paused, 1e-3))
        self._others = [values / np.median(values) for values in rest]
        self._period_ms = recording.period_ms
        self._steps, together = own.shape
        columns = [rng.permutation(together) for _ in range(-(-hosts // together))]
        self._columns = np.concatenate(columns)[:hosts]
        # Groups of as many as were recorded would share what the others do not.
        self._place = rng.uniform(0, self._steps, 1 if hosts <= together else hosts)
        self._step = int(rng.integers(self._steps))

    def step(self, step_ms: float) -> None:
        """As much later as a step takes, or now and then in another stretch."""
        self._step = (self._step + 1) % self._steps
        jumps = self._rng.random(self._place.size) < step_ms / _BLOCK_MS
        elsewhere = self._rng.uniform(0, self._steps, self._place.size)
        later = (self._place + step_ms / self._period_ms) % self._steps
        self._place = np.where(jumps, elsewhere, later)

    def own(self, usual_ms: float, step_ms: float) -> Own:
        """A host's work with its parts; pauses are as long as ever when the rest is slow."""
        work = usual_ms * self._pick(self._work)
        paused = OWN_SHARE * step_ms * self._paused[self._step, self._columns]
        return Own(work + paused, work * self._pick(self._input_share), paused)

    def device(self) -> Floats:
        """Of work on the devices, times the usual."""
        return self._pick(self._others[0])

    def probe(self) -> Floats:
        """Of a probe."""
        return self._pick(self._others[1])

    def trip(self) -> Floats:
        """Of a message's round trip."""
        return self._pick(self._others[2])

    def _pick(self, values: Floats) -> Floats:
        picked: Floats = values[self._place.astype(int), self._columns]
        return picked


def record(path: Path, steps: int = STEPS, hosts: int = HOSTS) -> Recording:
    """Let real processes take so many steps together, and write down what they took."""
    before = machine()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # for the processes: a product is one host's
    context = multiprocessing.get_context("spawn")
    pipes = [(context.Pipe(), context.Pipe()) for _ in range(hosts)]
    workers = [
        context.Process(target=_host, args=(rank, steps + _FIRST, world[1], echo[1]), daemon=True)
        for rank, (world, echo) in enumerate(pipes)
    ]
    for worker in workers:
        worker.start()
    for _, (echo, _) in pipes:
        threading.Thread(target=_answer, args=(echo,), daemon=True).start()
    ends = [world for (world, _), _ in pipes]
    for _ in range(_FIRST):
        _exchange(ends)
    begun = time.perf_counter()
    rows = [_exchange(ends) for _ in range(steps)]
    seconds = time.perf_counter() - begun
    for worker in workers:
        worker.join()
    about = f"{hosts} processes, {steps} steps in {seconds:.0f} s; {before}, {machine()} after"
    ms = np.array(rows, np.float32).transpose(2, 0, 1)
    recording = Recording(ms, 1000 * seconds / steps, about)
    recording.save(path)
    return recording


def _exchange(ends: list[Connection]) -> list[list[float]]:
    """Everybody waits for everybody."""
    told: list[list[float]] = [end.recv() for end in ends]
    for end in ends:
        end.send(None)
    return told


def _answer(echo: Connection) -> None:
    try:
        while True:
            echo.send_bytes(echo.recv_bytes())
    except (EOFError, OSError):
        return  # its host is done


def _host(rank: int, steps: int, world: Connection, echo: Connection) -> None:
    """What one host does."""
    with contextlib.suppress(OSError):  # who may not is recorded as he is
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    text = json.dumps([{"id": n, "tokens": list(range(n, n + 16))} for n in range(150)])
    large, small = (np.ones((n, n), np.float32) for n in (_DEVICE, _PROBE))
    paused = _Pauses()
    kept: list[object] = []
    for _ in range(steps):
        time.sleep(rank * _TURN_S)
        paused.ms = 0.0
        spent_ms = _timed(lambda: kept.append(json.loads(text)))
        rest_ms = _timed(lambda: [{str(n): [n]} for n in range(4000)])
        del kept[:-40]
        gc_ms = paused.ms
        device_ms = _timed(lambda: large @ large)
        probe_ms = _timed(lambda: small @ small)
        trip_ms = _timed(lambda: _ping(echo))
        world.send([spent_ms + rest_ms, spent_ms, gc_ms, device_ms, probe_ms, trip_ms])
        world.recv()


def _ping(echo: Connection) -> None:
    echo.send_bytes(b"ping")
    echo.recv_bytes()


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - begun)


class _Pauses:
    """Pauses of the garbage collector, from its own word."""

    def __init__(self) -> None:
        self.ms, self._begun = 0.0, 0.0
        gc.callbacks.append(self._collecting)

    def _collecting(self, phase: str, _: object) -> None:
        if phase == "start":
            self._begun = time.perf_counter()
        else:
            self.ms += 1000 * (time.perf_counter() - self._begun)
