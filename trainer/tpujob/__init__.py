"""The client a training script imports to report progress.

Every call is a no-op where no agent runs, so that a script works the same under
``python script.py``. A call costs about two microseconds and never blocks or raises
because of the agent.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tpujob.record import RecordWriter, SaveRequest
from tpujob_agent.protocol import Env, Phase

__all__ = [
    "Phase",
    "SaveRequest",
    "committed",
    "model_flops",
    "phase",
    "probe",
    "recompiled",
    "restored",
    "save_blocked",
    "save_interval_s",
    "save_request",
    "should_save",
    "step",
    "step_ceiling",
    "waiting_for_save",
]


class _Client:
    """Opens the record at the first call: the fork server imports this module before any exists."""

    def __init__(self) -> None:
        self._opened = False
        self._writer: RecordWriter | None = None

    def writer(self) -> RecordWriter | None:
        """The record, or None without an agent."""
        if not self._opened:
            self._opened = True
            self._writer = _open()
        return self._writer


def _open() -> RecordWriter | None:
    path = os.environ.get(Env.RECORD)
    if not path:
        return None
    try:
        writer = RecordWriter(Path(path))
    except (OSError, ValueError) as error:
        print(f"tpujob: progress is not reported: {error}", file=sys.stderr)
        return None
    gc.callbacks.append(writer.collecting)
    return writer


_client = _Client()


def phase(name: Phase | str) -> None:
    """Enter a phase: init, restore, compile, setup, train, finishing.

    Raises:
        ValueError: there is no phase of this name.
    """
    entered = Phase(name)
    if writer := _client.writer():
        writer.phase(entered)


def restored(step: int) -> None:
    """The state of checkpoint ``step`` is in memory; 0: a fresh start."""
    if writer := _client.writer():
        writer.restored(step)


def step(
    step: int,
    *,
    loss: float | None = None,
    tokens: int = 0,
    input_wait_s: float = 0.0,
    arrived_at: float | None = None,
    wait_s: float = 0.0,
) -> None:
    """A step has finished. Give ``loss`` as a number that is on the host already.

    Args:
        step: number of the finished step; the first one of a job is 1.
        loss: its loss, if known.
        tokens: tokens it has consumed, over all hosts.
        input_wait_s: seconds for which the loop waited for data in it.
        arrived_at: ``time.time()`` when this host was ready for it: the batch was there and the
            devices were free. Without it this host is not compared with the others.
        wait_s: seconds from then until its result was there.
    """
    if writer := _client.writer():
        times = None if arrived_at is None else (arrived_at, wait_s)
        writer.step(step, loss, tokens, input_wait_s, times)


def recompiled() -> None:
    """A program that the steps run had to be compiled again, as for another shape.

    What restores and saves compile when they first need it is not to be told.
    """
    if writer := _client.writer():
        writer.recompiled()


def probe(seconds: float) -> None:
    """A fixed piece of work on this host's own devices, without the others, took this long.

    Do one about once a second, the same on every host: a slow device shows in nothing else.
    """
    if writer := _client.writer():
        writer.probe(seconds)


def model_flops(per_token: float) -> None:
    """What the model needs for one token, forward and backward: MFU follows from it.

    Only the arithmetic of the model counts, not what is computed again. Tell it once; with the
    tokens of ``step``, and the chips' peak, ``status.progress.mfu`` is filled.
    """
    if writer := _client.writer():
        writer.model_flops(per_token)


def save_blocked(seconds: float) -> None:
    """The loop was held up by a save for this long."""
    if writer := _client.writer():
        writer.save_blocked(seconds)


@contextlib.contextmanager
def waiting_for_save(limit_s: float | None = None) -> Iterator[None]:
    """The training loop stands still for a save inside this block: that is no hang.

    Enter it on every host that stands still, around nothing but the wait.

    Args:
        limit_s: what the longest wait takes; from then on it is a hang. Without it the limit is
            half an hour, and longer if the last save took more than a tenth of that.
    """
    writer = _client.writer()
    if writer is None:
        yield
        return
    writer.begin_save_wait(limit_s)
    try:
        yield
    finally:
        writer.end_save_wait()


def committed(step: int, *, blocked_s: float | None = None, lag_s: float | None = None) -> None:
    """The checkpoint of ``step`` is durable and can be restored.

    Args:
        step: its step.
        blocked_s: seconds for which the save held up the loop.
        lag_s: seconds from the beginning of the save until it was durable. From both the
            coordinator works out the interval that ``save_interval_s`` tells.
    """
    if writer := _client.writer():
        writer.committed(step, blocked_s, lag_s)


def save_interval_s() -> float | None:
    """Seconds between saves that waste least, by what saves and failures have cost so far.

    None as long as that is not known, and where ``checkpoint.interval`` is not Auto. Change
    it on all hosts at the same step, by what one of them reads.
    """
    writer = _client.writer()
    interval_ms = writer.save_every_ms() if writer else 0
    return interval_ms / 1000 if interval_ms else None


def should_save(step: int) -> bool:
    """Whether the coordinator asks all ranks for a save at this step."""
    writer = _client.writer()
    return writer is not None and writer.save_request().step == step


def save_request() -> SaveRequest:
    """The newest save that the coordinator wants; for programs that agree on a step themselves.

    If its ``then_leave`` is true, exit with ``ExitCode.PREEMPTED`` when the save is durable.
    """
    writer = _client.writer()
    return writer.save_request() if writer else SaveRequest()


def step_ceiling() -> int | None:
    """Restore no step above this one; None: no ceiling."""
    value = os.environ.get(Env.STEP_CEILING, "")
    return int(value) if value else None
