"""The heartbeat record: a small shared memory file between a trainer and its agent.

The trainer is the only writer of every section but the header's request for a save.
A section ends with the CRC of its content: a reader that meets one that is being written, or
was written half, finds that they do not fit, whatever the order in which the processor makes
stores visible. No lock is shared between the processes: either may die at any time.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import struct
import threading
import time
import zlib
from pathlib import Path

from tpujob_agent.protocol import Phase

MAGIC = b"TPUJOBR4"
#: Newest losses kept; an agent reads the record far more often than this many steps.
RING_SIZE = 512
#: Newest steps of which the times are kept.
SAMPLES_KEPT = 256

_HEADER = struct.Struct("=8sQ")  # magic, generation
_INTEGER = struct.Struct("=q")
_CHECK = struct.Struct("=Q")
_PHASE = struct.Struct("=qqq")  # phase, at_ms, restored_step
_LOOP = struct.Struct("=qqqqqqqq")  # see RecordWriter.step
_SAVE = struct.Struct("=qqqqq")  # see _write_save
_PROBE = struct.Struct("=qq")  # number of probes, time of the newest
_WAIT = struct.Struct("=qq")  # since when the loop waits for a save, and its limit
_ENTRY = struct.Struct("=qd")  # step, loss
_SAMPLE = struct.Struct("=qddddd")  # step, and in seconds: arrived, input, wait, gc, save

_SAVE_AT_OFFSET = 16
_PID_OFFSET = 24
_THEN_LEAVE_OFFSET = 32
_LISTENS_OFFSET = 40
_SAVE_EVERY_OFFSET = 48
_FLOPS_OFFSET = 56
_PHASE_OFFSET = 64
_RECOMPILES_OFFSET = 112
_LOOP_OFFSET = 128
_SAVE_OFFSET = 256
_PROBE_OFFSET = 320
_WAIT_OFFSET = 352
_RING_OFFSET = 384
_SAMPLES_OFFSET = _RING_OFFSET + RING_SIZE * _ENTRY.size
RECORD_BYTES = _SAMPLES_OFFSET + SAMPLES_KEPT * _SAMPLE.size

_PHASE_START = (0, 0, -1)
_LOOP_START = (0,) * 8
_SAVE_START = (0, 0, 0, -1, -1)
_PROBE_START = (0, 0)
_WAIT_START = (0, -1)
_SECTIONS = (
    (_PHASE, _PHASE_OFFSET, _PHASE_START),
    (_LOOP, _LOOP_OFFSET, _LOOP_START),
    (_SAVE, _SAVE_OFFSET, _SAVE_START),
    (_PROBE, _PROBE_OFFSET, _PROBE_START),
    (_WAIT, _WAIT_OFFSET, _WAIT_START),
)

_PHASES = list(Phase)
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """What the record says at one moment. Times in milliseconds since the epoch; 0: never."""

    pid: int = 0
    obeys_saves: bool = False  # it has asked at least once what the coordinator wants
    phase: Phase = Phase.STARTING
    phase_at_ms: int = 0
    restored_step: int = -1
    step: int = 0
    step_at_ms: int = 0
    first_step: int = 0
    first_step_at_ms: int = 0
    tokens: int = 0
    flops_per_token: int = 0  # of the model; 0: not told
    recompiles: int = 0
    input_wait_ms: int = 0
    losses_written: int = 0
    samples_written: int = 0
    probes: int = 0
    probe_us: int = 0
    committed_step: int = 0
    committed_at_ms: int = 0
    save_blocked_ms: int = 0
    commit_blocked_ms: int = -1
    commit_lag_ms: int = -1
    save_wait_since_ms: int = 0  # the loop stands still for a save; 0: it does not
    save_wait_limit_ms: int = -1  # longest that it takes, as the program says; -1: not told


@dataclasses.dataclass(frozen=True, slots=True)
class SaveRequest:
    """A save at ``step`` that the coordinator wants (0: none), perhaps with an exit after it."""

    step: int = 0
    then_leave: bool = False


def _now_ms() -> int:
    return time.time_ns() // _NS_PER_MS


def _map(path: Path) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(descriptor, RECORD_BYTES)
    finally:
        os.close(descriptor)


def _made(path: Path, generation: int) -> mmap.mmap:
    path.unlink(missing_ok=True)  # an old trainer may still have the old file mapped
    try:
        path.write_bytes(_HEADER.pack(MAGIC, generation).ljust(RECORD_BYTES, b"\0"))
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return _map(path)


def _write(memory: mmap.mmap, layout: struct.Struct, offset: int, values: tuple[int, ...]) -> None:
    content = layout.pack(*values)
    memory[offset : offset + layout.size + _CHECK.size] = content + _CHECK.pack(zlib.crc32(content))


class RecordReader:
    """The agent's side: makes the file, reads it, and asks for saves."""

    def __init__(self, path: Path | None, generation: int) -> None:
        """Make an empty record; None: one that nobody can write.

        Raises:
            OSError: there is no room for it, or another problem of the disk.
        """
        self.path = path or Path(os.devnull)
        self._memory = _made(path, generation) if path else mmap.mmap(-1, RECORD_BYTES)
        for layout, offset, start in _SECTIONS:
            _write(self._memory, layout, offset, start)

    def read(self) -> Snapshot:
        """The newest consistent state; parts that never come to rest are left at their start."""
        pid = _INTEGER.unpack_from(self._memory, _PID_OFFSET)[0]
        phase, phase_at, restored = self._section(_PHASE, _PHASE_OFFSET) or _PHASE_START
        loop = self._section(_LOOP, _LOOP_OFFSET) or _LOOP_START
        probes, probe_ns = self._section(_PROBE, _PROBE_OFFSET) or _PROBE_START
        committed, committed_at, blocked_ns, commit_blocked_ms, commit_lag_ms = (
            self._section(_SAVE, _SAVE_OFFSET) or _SAVE_START
        )
        wait_since, wait_limit = self._section(_WAIT, _WAIT_OFFSET) or _WAIT_START
        return Snapshot(
            pid=pid,
            obeys_saves=bool(_INTEGER.unpack_from(self._memory, _LISTENS_OFFSET)[0]),
            phase=_PHASES[phase],
            phase_at_ms=phase_at,
            restored_step=restored,
            step=loop[0],
            step_at_ms=loop[1],
            first_step=loop[2],
            first_step_at_ms=loop[3],
            tokens=loop[4],
            recompiles=_INTEGER.unpack_from(self._memory, _RECOMPILES_OFFSET)[0],
            flops_per_token=_INTEGER.unpack_from(self._memory, _FLOPS_OFFSET)[0],
            input_wait_ms=loop[5] // _NS_PER_MS,
            losses_written=loop[6],
            samples_written=loop[7],
            probes=probes,
            probe_us=probe_ns // 1000,
            committed_step=committed,
            committed_at_ms=committed_at,
            save_blocked_ms=blocked_ns // _NS_PER_MS,
            commit_blocked_ms=commit_blocked_ms if committed else -1,
            commit_lag_ms=commit_lag_ms if committed else -1,
            save_wait_since_ms=wait_since,
            save_wait_limit_ms=wait_limit,
        )

    def _section(self, layout: struct.Struct, offset: int) -> tuple[int, ...] | None:
        size = layout.size
        for _ in range(1000):
            found = self._memory[offset : offset + size + _CHECK.size]
            if zlib.crc32(found[:size]) == _CHECK.unpack_from(found, size)[0]:
                return layout.unpack_from(found)
        return None  # the writer was killed between two words: its last state is lost

    def losses(self, after: int, until: int) -> list[list[float]]:
        """``[step, loss]`` pairs number ``after`` … ``until - 1``, as far as still kept."""
        first = max(after, until - RING_SIZE)
        places = (_RING_OFFSET + (i % RING_SIZE) * _ENTRY.size for i in range(first, until))
        return [list(_ENTRY.unpack_from(self._memory, place)) for place in places]

    def samples(self, after: int, until: int, limit: int) -> list[list[float]]:
        """Samples number ``after`` … ``until - 1`` as in ``Report``, at most ``limit`` of them.

        If there are more, those of steps that are multiples of a power of two: other hosts
        choose the same steps.
        """
        first = max(after, until - SAMPLES_KEPT)
        stride = 1
        while (until - first) > limit * stride:
            stride *= 2
        places = (_SAMPLES_OFFSET + (i % SAMPLES_KEPT) * _SAMPLE.size for i in range(first, until))
        found = (_SAMPLE.unpack_from(self._memory, place) for place in places)
        chosen = [sample for sample in found if sample[0] % stride == 0]
        return [[step, *(round(s * 1000, 3) for s in spans)] for step, *spans in chosen[-limit:]]

    def ask_for_save(self, step: int, *, then_leave: bool = False) -> None:
        """Have ``tpujob.should_save(step)`` answer yes, and ``save_request`` tell of it."""
        _INTEGER.pack_into(self._memory, _THEN_LEAVE_OFFSET, then_leave)
        _INTEGER.pack_into(self._memory, _SAVE_AT_OFFSET, step)

    def save_every(self, interval_ms: int) -> None:
        """Have ``tpujob.save_interval_s()`` answer with this."""
        _INTEGER.pack_into(self._memory, _SAVE_EVERY_OFFSET, interval_ms)

    def close(self) -> None:
        """Drop the mapping; a trainer that still has its own is not disturbed."""
        self._memory.close()


class RecordWriter:
    """The trainer's side. ``step`` belongs to one thread; all else may come from any thread."""

    def __init__(self, path: Path) -> None:
        self._memory = _map(path)
        if self._memory[: len(MAGIC)] != MAGIC:
            raise ValueError(f"{path} is not a heartbeat record of this version")
        self._lock = threading.Lock()
        self._phase, self._phase_at_ms, self._restored_step = Phase.STARTING, 0, -1
        self._steps, self._first_step, self._first_step_at_ms = 0, 0, 0
        self._tokens, self._input_wait_ns, self._losses = 0, 0, 0
        self._committed_step, self._committed_at_ms, self._blocked_ns = 0, 0, 0
        self._commit_cost_ms = (-1, -1)
        self._samples, self._probes, self._recompiles = 0, 0, 0
        self._gc_begun, self._gc_s, self._step_blocked_s = 0.0, 0.0, 0.0  # since the last step
        self._listens = False
        _INTEGER.pack_into(self._memory, _PID_OFFSET, os.getpid())

    def phase(self, phase: Phase) -> None:
        """The program enters a phase now."""
        with self._lock:
            self._phase, self._phase_at_ms = phase, _now_ms()
            self._write_phase()

    def restored(self, step: int) -> None:
        """The state of ``step`` is in memory; 0: a fresh start."""
        with self._lock:
            self._restored_step = step
            self._write_phase()

    def _write_phase(self) -> None:
        fields = (_PHASES.index(self._phase), self._phase_at_ms, self._restored_step)
        _write(self._memory, _PHASE, _PHASE_OFFSET, fields)

    def step(
        self,
        step: int,
        loss: float | None,
        tokens: int,
        input_wait_s: float,
        times: tuple[float, float] | None = None,
    ) -> None:
        """A step has finished; about two microseconds. ``times``: when it arrived, and its wait."""
        now_ms = time.time_ns() // _NS_PER_MS
        self._steps = number = self._steps + 1
        if number == 1:
            self._begin(step, now_ms)
        if loss is not None:
            place = _RING_OFFSET + (self._losses % RING_SIZE) * _ENTRY.size
            _ENTRY.pack_into(self._memory, place, step, loss)
            self._losses += 1
        self._tokens += tokens
        if input_wait_s:
            self._input_wait_ns += int(input_wait_s * _NS_PER_S)
        if times is not None:
            place = _SAMPLES_OFFSET + (self._samples % SAMPLES_KEPT) * _SAMPLE.size
            spans_s = (times[0], input_wait_s, times[1], self._gc_s, self._step_blocked_s)
            _SAMPLE.pack_into(self._memory, place, step, *spans_s)
            self._samples += 1
            self._gc_s = self._step_blocked_s = 0.0
        fields = (
            step,
            now_ms,
            self._first_step,
            self._first_step_at_ms,
            self._tokens,
            self._input_wait_ns,
            self._losses,
            self._samples,
        )
        _write(self._memory, _LOOP, _LOOP_OFFSET, fields)

    def collecting(self, when: str, _info: object) -> None:
        """For ``gc.callbacks``: the garbage collector starts or stops."""
        now = time.perf_counter()
        if when == "start":
            self._gc_begun = now
        else:
            self._gc_s += now - self._gc_begun

    def recompiled(self) -> None:
        """A program was compiled again."""
        with self._lock:
            self._recompiles += 1
            _INTEGER.pack_into(self._memory, _RECOMPILES_OFFSET, self._recompiles)

    def probe(self, seconds: float) -> None:
        """A fixed piece of work on this host's own devices took this long."""
        self._probes = number = self._probes + 1
        _write(self._memory, _PROBE, _PROBE_OFFSET, (number, int(seconds * _NS_PER_S)))

    def _begin(self, step: int, now_ms: int) -> None:
        self._first_step, self._first_step_at_ms = step, now_ms
        if self._phase.order < Phase.TRAIN.order:
            self.phase(Phase.TRAIN)

    def save_blocked(self, seconds: float) -> None:
        """The loop was held up by a save for this long."""
        with self._lock:
            self._blocked_ns += int(seconds * _NS_PER_S)
            self._step_blocked_s += seconds
            self._write_save()

    def committed(
        self, step: int, blocked_s: float | None = None, lag_s: float | None = None
    ) -> None:
        """The checkpoint of ``step`` is durable; None: its cost is not known."""
        with self._lock:
            self._committed_step, self._committed_at_ms = step, _now_ms()
            self._commit_cost_ms = (_ms_or_none(blocked_s), _ms_or_none(lag_s))
            self._write_save()

    def _write_save(self) -> None:
        fields = (self._committed_step, self._committed_at_ms, self._blocked_ns)
        _write(self._memory, _SAVE, _SAVE_OFFSET, fields + self._commit_cost_ms)

    def begin_save_wait(self, limit_s: float | None) -> None:
        """The loop stands still for a save from now on; None: no limit of its own."""
        _write(self._memory, _WAIT, _WAIT_OFFSET, (_now_ms(), _ms_or_none(limit_s)))

    def end_save_wait(self) -> None:
        """The loop goes on."""
        _write(self._memory, _WAIT, _WAIT_OFFSET, _WAIT_START)

    def model_flops(self, per_token: float) -> None:
        """What the model needs for one token."""
        _INTEGER.pack_into(self._memory, _FLOPS_OFFSET, min(round(per_token), 2**63 - 1))

    def save_request(self) -> SaveRequest:
        """The save that the coordinator wants."""
        step: int = _INTEGER.unpack_from(self._memory, _SAVE_AT_OFFSET)[0]
        then_leave = _INTEGER.unpack_from(self._memory, _THEN_LEAVE_OFFSET)[0]
        if not self._listens:
            self._listens = True
            _INTEGER.pack_into(self._memory, _LISTENS_OFFSET, 1)
        return SaveRequest(step, bool(then_leave))

    def save_every_ms(self) -> int:
        """The interval that the coordinator wants; 0: it wants none."""
        interval_ms: int = _INTEGER.unpack_from(self._memory, _SAVE_EVERY_OFFSET)[0]
        return interval_ms


def _ms_or_none(seconds: float | None) -> int:
    return -1 if seconds is None else max(0, round(seconds * 1000))
