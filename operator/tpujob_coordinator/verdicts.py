"""Which of the ends that belong together began it, and what it was."""

from __future__ import annotations

import dataclasses
import enum
import signal
from collections.abc import Iterable

from tpujob_agent.protocol import Cause, ExitCode, Report
from tpujob_coordinator.membership import Place


class Rank(enum.IntEnum):
    """How sure an end is the culprit and not a consequence; lower is surer."""

    CERTAIN = 0  # killed by a signal that nobody of us sent, or gone with its pod
    OWN_EXIT = 1  # the program's own exit code
    CHECKED = 2  # hang, bad checkpoint: the agent's or the trainer's verdict on itself
    FOLLOWER = 3  # only says that a peer has died


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """One member's end within a generation's end. Times on the coordinator's clock, in ms."""

    place: Place
    at_ms: int
    cause: Cause
    rank: Rank
    message: str
    node: str = ""
    pod: str = ""
    exit_code: int | None = None
    signal: int | None = None
    is_given_up: bool = False  # its pod is to be replaced, though it lives


_OWN_CODES = {
    ExitCode.STALLED: (Cause.HANG, "stalled: no step was finished for too long"),
    ExitCode.CHECKPOINT_BAD: (Cause.CHECKPOINT, "no readable checkpoint"),
    ExitCode.STORAGE_UNAVAILABLE: (Cause.STORAGE, "checkpoint storage could not be used"),
    ExitCode.SUPERSEDED: (Cause.PROCESS, "superseded on its checkpoint directory"),
}
#: A shell reports a signal as 128 plus its number.
_SHELL_SIGNAL = 128


def judge(report: Report) -> tuple[Cause, Rank, str]:
    """Cause, rank and a sentence for one trainer that did not end well by itself."""
    cause, rank, message = _judge_end(report)
    if report.out_of_memory:
        message = f"out of memory ({report.out_of_memory}): {message}"
    return cause, rank, message


def _judge_end(report: Report) -> tuple[Cause, Rank, str]:
    if report.killed_by_agent:
        cause = Cause.HANG if report.signal is not None else Cause.PROCESS
        return cause, Rank.CHECKED, report.killed_by_agent
    if report.signal is not None:
        return _judge_signal(report.signal, report.tail)
    code = report.exit_code
    if code in _OWN_CODES:
        cause, message = _OWN_CODES[ExitCode(code)]
        return cause, Rank.CHECKED, _with_tail(message, report.tail)
    if code == ExitCode.PEER_LOST:
        return Cause.PROCESS, Rank.FOLLOWER, _with_tail("lost a peer", report.tail)
    if code is not None and code > _SHELL_SIGNAL and _signal_name(code - _SHELL_SIGNAL):
        return _judge_signal(code - _SHELL_SIGNAL, report.tail)
    return Cause.USER_ERROR, Rank.OWN_EXIT, _with_tail(f"exited with code {code}", report.tail)


def _judge_signal(number: int, tail: str) -> tuple[Cause, Rank, str]:
    name = _signal_name(number) or f"signal {number}"
    if number == signal.SIGABRT:  # JAX's runtime aborts when its coordination service is gone
        return Cause.PROCESS, Rank.FOLLOWER, _with_tail(f"aborted ({name})", tail)
    message = f"killed by {name}"
    if number in {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}:
        message = _with_tail(f"crashed with {name}", tail)
    return Cause.PROCESS, Rank.CERTAIN, message


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def _with_tail(message: str, tail: str) -> str:
    return f"{message}; its last output:\n{tail.strip()}" if tail.strip() else message


def culprit(ends: Iterable[End]) -> End:
    """The end that caused the others: the surest kind, and of those the earliest.

    Raises:
        ValueError: there are no ends.
    """
    return min(ends, key=lambda end: (end.rank, end.at_ms, end.place))
