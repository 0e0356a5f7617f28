"""The events of a job's timeline: part of the contract in ``tpujob_agent.protocol``."""

from __future__ import annotations

import dataclasses
from typing import Any

from tpujob_agent.text import Text


class ProtocolError(ValueError):
    """A line that is not a valid message."""


class Finding(Text):
    """Kinds of findings about a job's health."""

    STRAGGLER = "straggler"  # one host holds up the others
    SLOWDOWN = "slowdown"  # steps take longer than they did, and no host is the cause
    INPUT_BOUND = "inputBound"  # too much of the time is waiting for input
    RECOMPILING = "recompiling"  # programs are compiled again and again
    SAVE_BOUND = "saveBound"  # too much of the time is lost to saves


class EventKind(Text):
    """Kinds of timeline events, with the keys of their ``data``."""

    COORDINATOR_STARTED = "coordinatorStarted"  # {}
    MEMBER_JOINED = "memberJoined"  # slice, host, node, pod, ip
    MEMBER_LEFT = "memberLeft"  # slice, host, node, pod, reason
    MEMBERS_COMPLETE = "membersComplete"  # hosts; every wanted member is present
    # GENERATION_STARTED: generation, hosts, slices (indices), wantedSlices (number), leader,
    #   adopted (a new coordinator found it running)
    GENERATION_STARTED = "generationStarted"
    PHASE = "phase"  # generation, phase (of the least advanced process), sinceAtMs
    RESTORED = "restored"  # generation, step (0: fresh start); cuts unsettled steps
    # PROGRESS: generation, firstStep, lastStep, endedAtMs, loss (null: not finite or none), and
    #   inputWaitMs, saveBlockedMs, tokens of these steps; flopsPerToken of the model, if told
    PROGRESS = "progress"
    # COMMITTED: step, committedAtMs, and if the program tells them blockedMs (it held training
    #   up) and lagMs (from its beginning until it was durable)
    COMMITTED = "committed"
    # INTERVAL: the checkpoint interval that the trainer is told from now on: intervalMs,
    #   predictedRatio (of time, kept), and what it follows from: mtbfMs, blockedMs, lagMs,
    #   recoveryMs, isStorageBound
    INTERVAL = "interval"
    # LOSS: generation, cause, slice, host, node, pod, exitCode, signal, onsetAtMs (fault began),
    #   detectedAtMs (Stop was sent; the event itself may wait for the culprit), step, message,
    #   isGivenUp (the pod is to be replaced, though it lives)
    LOSS = "loss"
    GROWING = "growing"  # generation, slices, toSlices; all save at step and leave
    GENERATION_LEFT = "generationLeft"  # generation, leftAtMs, step; to grow: no loss
    GENERATION_STOPPED = "generationStopped"  # generation; the last old process is gone
    BACKOFF = "backoff"  # untilAtMs, cause
    DRAINING = "draining"  # slice, host, node, pod, graceMs
    # FINDING: what was found out about the job's health, and when it is over: finding (see
    #   ``Finding``), isOpen, generation, slice, host, node, pod (-1 and "": no single host),
    #   signal, cause, ratio (a step takes so many times as long for it), step, message.
    #   All are over when the generation is.
    FINDING = "finding"
    FINISHED = "finished"  # step; every trainer exited 0
    GAVE_UP = "gaveUp"  # cause, budget, message; all stopped, the operator ends the job
    UNKNOWN = "unknown"  # never sent: whatever a newer coordinator tells besides, to be skipped

    @classmethod
    def _missing_(cls, value: object) -> EventKind | None:
        return cls.UNKNOWN if isinstance(value, str) else None


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """One entry of a job's timeline. ``seq`` starts at 1 and has no gaps within an ``epoch``.

    A coordinator that starts anew has a new epoch and numbers from 1 again.
    """

    seq: int
    at_ms: int
    kind: EventKind
    data: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The event as it travels over HTTP."""
        return {"seq": self.seq, "atMs": self.at_ms, "kind": self.kind.value, "data": self.data}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Event:
        """Inverse of ``to_json``; a kind of a newer coordinator is UNKNOWN.

        Raises:
            ProtocolError: a key is missing or of another type.
        """
        try:
            return cls(int(raw["seq"]), int(raw["atMs"]), EventKind(raw["kind"]), dict(raw["data"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"not a timeline event: {raw!r} ({error})") from error
