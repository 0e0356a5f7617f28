"""One trainer process as the agent sees it, and the reports about it."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from pathlib import Path
from typing import Any

from tpujob.record import RING_SIZE, RecordReader, Snapshot
from tpujob_agent import memory
from tpujob_agent.output import Output
from tpujob_agent.protocol import (
    SAMPLES_PER_REPORT,
    Phase,
    ProcessState,
    Report,
    Run,
    Save,
    SaveEvery,
)
from tpujob_agent.stalls import Stalls

#: Report early when this many losses are waiting, so that the ring never laps.
LOSSES_DUE = RING_SIZE // 2


_MEMORY = Path("/dev/shm")  # noqa: S108 - every container has one of its own


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def record_path(run_dir: Path, pod: str) -> Path:
    """Where the record lies: in memory, if there is such a place.

    On a disk, a store into the mapped page can wait for a journal that is busy with a
    checkpoint. The name is the same for every agent of a pod, so that killed agents leave
    one small file and not many.
    """
    place = f"{pod} {run_dir.resolve()}"
    name = f"tpujob-{hashlib.sha256(place.encode()).hexdigest()[:16]}"
    path = _MEMORY / name
    try:
        path.touch(0o600)
    except OSError:
        return run_dir / "record"
    return path if path.stat().st_uid == os.getuid() else run_dir / "record"


def open_record(run_dir: Path, pod: str, run: Run) -> tuple[RecordReader, str]:
    """The record of a new trainer, and why there is none that it could write; empty: there is.

    In memory, or on the disk if there is no room.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        return RecordReader(record_path(run_dir, pod), run.generation), ""
    except OSError as first:
        problem = str(first)
    try:
        return RecordReader(run_dir / "record", run.generation), ""
    except OSError as second:
        problem = f"there is no room for the trainer's record ({problem}; {second}): free some"
    return RecordReader(None, run.generation), problem


@dataclasses.dataclass(slots=True)
class Exit:
    """How a trainer ended."""

    exit_code: int | None = None
    signal: int | None = None
    at_ms: int = 0
    is_stop: bool = False  # the coordinator said so
    killed_by_agent: str = ""
    out_of_memory: str = ""


class Trainer:
    """A trainer from its start on; after its end it stands for the generation's result."""

    def __init__(self, run: Run, record: RecordReader, output: Output, stalls: Stalls) -> None:
        self.generation, self.num_processes = run.generation, run.num_processes
        self._fence_s = run.fence_s
        self.output = output
        self.stalls = stalls
        self.pid = 0  # 0: the fork server has not forked yet
        self.is_stopping = False
        self.is_asked_to_leave = False
        self.is_condemned = False  # by our own watchdog
        self.exit: Exit | None = None
        self._record = record
        self._record.save_every(run.save_every_ms)
        self._seen = Snapshot()
        self._losses_sent = self._samples_sent = 0
        self._first_step = (0, 0)  # of a progress pattern
        self._memory_kills = memory.kills()

    @property
    def is_alive(self) -> bool:
        """Whether the process exists or is about to."""
        return self.exit is None

    @property
    def state(self) -> ProcessState:
        """State for the report."""
        if self.exit is None:
            return ProcessState.RUNNING
        return ProcessState.STOPPED if self.exit.is_stop else ProcessState.EXITED

    def look(self) -> tuple[Any, ...]:
        """Read the record; an answer that differs from the last one is worth a report at once."""
        if self.is_alive:
            self._seen = self._with_pattern(self._record.read())
            self.stalls.look(self._seen, self.pid)
        seen, stalls = self._seen, self.stalls
        reached = (seen.phase, seen.restored_step, seen.first_step, seen.committed_step)
        return (self.state, *reached, stalls.reason, stalls.answer)

    @property
    def has_many_losses(self) -> bool:
        """Whether the ring of losses would lap soon."""
        return self._seen.losses_written - self._losses_sent >= LOSSES_DUE

    def _with_pattern(self, seen: Snapshot) -> Snapshot:
        """Fill in steps read from the output of a program that does not report."""
        output = self.output
        if seen.step or not output.step:
            return seen
        if not self._first_step[0]:
            self._first_step = (output.step, output.step_at_ms)
        return dataclasses.replace(
            seen,
            phase=Phase.TRAIN,
            phase_at_ms=self._first_step[1],
            step=output.step,
            step_at_ms=output.step_at_ms,
            first_step=self._first_step[0],
            first_step_at_ms=self._first_step[1],
        )

    def resend(self) -> None:
        """Tell a new coordinator all losses that are still there."""
        self._losses_sent = 0

    def is_fenced(self, alone_s: float) -> bool:
        """Whether another world may run by now, after so long without a coordinator."""
        return self.is_alive and 0 < self._fence_s <= alone_s

    def wish(self, order: Save | SaveEvery) -> None:
        """Pass the coordinator's wish on to the trainer."""
        if isinstance(order, SaveEvery):
            self._record.save_every(order.interval_ms)
            return
        if self.is_asked_to_leave:  # at a step that all know; a new coordinator does not
            return
        self.is_asked_to_leave = order.then_leave
        self._record.ask_for_save(order.step, then_leave=order.then_leave)

    def end(self, result: Exit) -> None:
        """The process has ended: take its last words."""
        self.output.pump()
        self._seen = self._with_pattern(self._record.read())
        if self.is_condemned:
            result.is_stop, result.killed_by_agent = False, self.stalls.reason
        if memory.kills() > self._memory_kills:
            result.out_of_memory = memory.limit()
        self.exit = result

    def report(self) -> Report:
        """Everything the coordinator wants to know."""
        seen = self._seen
        losses = self._record.losses(self._losses_sent, seen.losses_written)
        samples = self._record.samples(self._samples_sent, seen.samples_written, SAMPLES_PER_REPORT)
        self._losses_sent, self._samples_sent = seen.losses_written, seen.samples_written
        result = self.exit or Exit()
        return Report(
            sent_at_ms=now_ms(),
            state=self.state,
            generation=self.generation,
            num_processes=self.num_processes,
            phase=seen.phase,
            phase_at_ms=seen.phase_at_ms,
            step=seen.step,
            step_at_ms=seen.step_at_ms,
            first_step=seen.first_step,
            first_step_at_ms=seen.first_step_at_ms,
            restored_step=seen.restored_step,
            committed_step=seen.committed_step,
            committed_at_ms=seen.committed_at_ms,
            commit_blocked_ms=seen.commit_blocked_ms,
            commit_lag_ms=seen.commit_lag_ms,
            tokens=seen.tokens,
            flops_per_token=seen.flops_per_token,
            input_wait_ms=seen.input_wait_ms,
            save_blocked_ms=seen.save_blocked_ms,
            losses=losses,
            exit_code=result.exit_code,
            signal=result.signal,
            exited_at_ms=result.at_ms,
            tail=self.output.tail if self.state is ProcessState.EXITED else "",
            killed_by_agent=result.killed_by_agent,
            out_of_memory=result.out_of_memory,
            process_state=self.stalls.state,
            stalled=self.stalls.reason,
            obeys_saves=seen.obeys_saves,
            stacks=self.stalls.answer,
            samples=samples,
            recompiles=seen.recompiles,
            waits_for_save=bool(seen.save_wait_since_ms),
            probes=seen.probes,
            probe_us=seen.probe_us,
        )

    def close(self) -> None:
        """Drop record and pipe."""
        self._record.close()
        self.output.close()
        self.stalls.close()
