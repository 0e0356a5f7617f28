"""Everything the operator remembers of a job: one pure fold, kept in ``status.ledger``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from tpujob_agent.protocol import Event, EventKind
from tpujob_operator.core import storedledger
from tpujob_operator.core.findings import Findings
from tpujob_operator.core.forms import FORMS
from tpujob_operator.core.incidents import Incidents, shortened
from tpujob_operator.core.ledger import Ledger
from tpujob_operator.core.observations import FactKind, Observation
from tpujob_operator.core.recoveries import Recoveries
from tpujob_operator.core.stored import flag, known_fields, text, whole
from tpujob_operator.core.timeline import MOST, Malformed, TimelineBatch


@dataclasses.dataclass(frozen=True, slots=True)
class Cursor:
    """How far the timeline of which coordinator has been read."""

    epoch: str = ""
    seq: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """Newest known step, checkpoint and speed."""

    step: int = 0
    step_at_ms: int = 0  # 0: no step of the world that runs
    last_step_at_ms: int = 0  # of any world
    committed_step: int = 0
    committed_at_ms: int = 0
    loss: float | None = None
    tokens: int = 0
    flops_per_token: int = 0  # of the model; 0: not told
    tokens_lost: int = 0  # of steps that are done again
    steps_settled: int = 0
    steps_lost: int = 0
    # exponentially weighted mean over the recent steps
    step_ms: float = 0.0
    step_tokens: float = 0.0  # of the newest steps
    # of the newest save that told: how long it held training up, and until it was durable
    save_blocked_ms: int = -1
    save_lag_ms: int = -1

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Progress:
        """Inverse of ``dataclasses.asdict``; keys of other versions are ignored."""
        return cls(**known_fields(cls, raw))


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """The planned checkpoint interval and the goodput it should lead to; 0: none is planned."""

    interval_ms: int = 0
    predicted_ratio: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Skipped:
    """Events of the coordinator that could not be read."""

    count: int = 0
    why: str = ""  # of the first one

    def another(self, why: str) -> Skipped:
        """One more."""
        return Skipped(self.count + 1, self.why or why)


#: Characters of the message with which a coordinator gives up: it becomes a condition's.
_GAVE_UP_LIMIT = 4_096
_ENDS_OF_WORLDS = (EventKind.LOSS, EventKind.GAVE_UP)
#: Weight of the newest stretch of steps in the mean step time.
_SMOOTHING = 0.3


@dataclasses.dataclass(frozen=True, slots=True)
class History:
    """State of the fold over a job's observations."""

    ledger: Ledger
    incidents: Incidents = dataclasses.field(default_factory=Incidents)
    progress: Progress = dataclasses.field(default_factory=Progress)
    recoveries: Recoveries = dataclasses.field(default_factory=Recoveries)
    cursor: Cursor = dataclasses.field(default_factory=Cursor)
    generation: int = 0
    hosts: int = 0
    finished: bool = False
    interval: Interval = dataclasses.field(default_factory=Interval)
    findings: Findings = dataclasses.field(default_factory=Findings)
    gave_up: str = ""  # the coordinator's message
    gave_up_cause: str = ""
    skipped: Skipped = dataclasses.field(default_factory=Skipped)

    @classmethod
    def start(cls, created_ms: int) -> History:
        """The history of a job that was just created."""
        return cls(ledger=Ledger.start(created_ms))

    def apply(self, seen: Observation) -> History:
        """The history after one observation."""
        ledger = self.ledger.apply(seen)
        is_outdated = self.ledger.leaving and seen.kind is EventKind.FINISHED
        if is_outdated or (self.ledger.is_told_to_go and seen.kind in _ENDS_OF_WORLDS):
            # The coordinator cannot know that these hosts were meant to leave.
            return dataclasses.replace(self, ledger=ledger)
        return dataclasses.replace(
            _noted(self, seen),
            ledger=ledger,
            findings=self.findings.apply(seen),
            incidents=self.incidents.apply(seen),
            progress=_progressed(self, seen),
            recoveries=self.recoveries.apply(seen, self.ledger, ledger),
        )

    def read(self, batch: TimelineBatch) -> History:
        """The history after a stretch of a coordinator's timeline.

        Events that were read before are skipped, so reading twice changes nothing. One that
        cannot be understood is counted instead.
        """
        history = self
        if batch.epoch != self.cursor.epoch:
            history = dataclasses.replace(self, cursor=Cursor(batch.epoch, 0), finished=False)
        for event in batch.events:
            if event.seq > history.cursor.seq:
                cursor = Cursor(batch.epoch, event.seq)
                history = dataclasses.replace(_after(history, event), cursor=cursor)
        return history.advance(batch.now_ms)

    def advance(self, now_ms: int) -> History:
        """The history when nothing more can have happened before ``now_ms``."""
        return dataclasses.replace(self, ledger=self.ledger.advance(now_ms))

    def to_json(self) -> dict[str, Any]:
        """A JSON object of the newest form, from which ``from_json`` makes an equal history."""
        return {
            "form": FORMS.newest,
            "ledger": storedledger.to_json(self.ledger),
            "incidents": self.incidents.to_json(),
            "progress": dataclasses.asdict(self.progress),
            "recoveries": self.recoveries.to_json(),
            "cursor": dataclasses.asdict(self.cursor),
            "generation": self.generation,
            "hosts": self.hosts,
            "finished": self.finished,
            "interval": dataclasses.asdict(self.interval),
            "findings": self.findings.to_json(),
            "gaveUp": self.gave_up,
            "gaveUpCause": self.gave_up_cause,
            "skipped": dataclasses.asdict(self.skipped),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> History:
        """Inverse of ``to_json``; see ``forms`` for states of other forms.

        Raises:
            ValueError: the state is damaged.
        """
        try:
            return cls(
                ledger=storedledger.from_json(raw["ledger"]),
                incidents=Incidents.from_json(raw["incidents"]),
                progress=Progress.from_json(raw["progress"]),
                recoveries=Recoveries.from_json(raw.get("recoveries", {})),
                cursor=Cursor(**known_fields(Cursor, raw["cursor"])),
                generation=whole(raw["generation"]),
                hosts=whole(raw["hosts"]),
                finished=flag(raw["finished"]),
                # not in older states
                interval=Interval(**known_fields(Interval, raw.get("interval", {}))),
                findings=Findings.from_json(raw.get("findings", [])),
                gave_up=text(raw["gaveUp"]),
                gave_up_cause=text(raw["gaveUpCause"]),
                skipped=Skipped(**known_fields(Skipped, raw.get("skipped", {}))),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"status.ledger is damaged: {error!r}") from error


def _after(history: History, event: Event | Malformed) -> History:
    why = event.why if isinstance(event, Malformed) else ""
    if isinstance(event, Event):
        try:
            return history.apply(event)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next event may be fine
            why = f"{event.kind.value}: {error!r}"[:200]
    return dataclasses.replace(history, skipped=history.skipped.another(why))


def needs_decision(before: History, after: History) -> bool:
    """Whether more has changed than the time and the steps: something may have to be done."""
    return _gist(before) != _gist(after)


def _gist(history: History) -> tuple[Any, ...]:
    ledger = history.ledger
    flags = (ledger.is_told_to_go, ledger.stopping, ledger.bound, ledger.complete, ledger.phase)
    world = (history.generation, history.hosts, ledger.generation, ledger.unseen, ledger.ended)
    ends = (history.finished, history.gave_up, ledger.backoff_until_ms)
    return (*flags, *world, *ends, history.incidents, history.findings)


def _noted(history: History, seen: Observation) -> History:
    if seen.kind in (EventKind.GENERATION_STARTED, FactKind.PODS_RUNNING):
        return dataclasses.replace(
            history, generation=int(seen.data["generation"]), hosts=int(seen.data["hosts"])
        )
    if seen.kind is EventKind.INTERVAL:
        planned = Interval(int(seen.data["intervalMs"]), float(seen.data["predictedRatio"]))
        return dataclasses.replace(history, interval=planned)
    if seen.kind is EventKind.FINISHED:
        return dataclasses.replace(history, finished=True)
    if seen.kind is EventKind.GAVE_UP:
        return dataclasses.replace(
            history,
            gave_up=shortened(str(seen.data["message"]), _GAVE_UP_LIMIT) or "no reason was given",
            gave_up_cause=str(seen.data["cause"]),
        )
    return history


def _progressed(history: History, seen: Observation) -> Progress:
    progress = history.progress
    if seen.kind is EventKind.PROGRESS:
        return _stepped(progress, seen)
    if seen.kind is EventKind.COMMITTED:
        step = max(progress.committed_step, int(seen.data["step"]))
        return dataclasses.replace(
            progress,
            committed_step=step,
            committed_at_ms=int(seen.data.get("committedAtMs") or seen.at_ms),
            steps_settled=progress.steps_settled + step - progress.committed_step,
            save_blocked_ms=int(seen.data.get("blockedMs", progress.save_blocked_ms)),
            save_lag_ms=int(seen.data.get("lagMs", progress.save_lag_ms)),
        )
    if seen.kind is EventKind.RESTORED:
        if int(seen.data["generation"]) <= history.ledger.restored_generation:
            return progress  # told again by a new coordinator
        step = int(seen.data["step"])
        lost = max(0, progress.step - step)
        return dataclasses.replace(
            progress,
            step=step,
            step_at_ms=0,
            steps_lost=min(MOST, progress.steps_lost + lost),
            tokens_lost=min(
                progress.tokens, progress.tokens_lost + round(lost * progress.step_tokens)
            ),
        )
    return progress


def _stepped(progress: Progress, seen: Observation) -> Progress:
    first, last = int(seen.data["firstStep"]), int(seen.data["lastStep"])
    ended_ms = int(seen.data["endedAtMs"])
    step_ms = progress.step_ms
    if progress.step_at_ms and last > progress.step:
        newest = (ended_ms - progress.step_at_ms) / (last - progress.step)
        step_ms = newest if not step_ms else step_ms + _SMOOTHING * (newest - step_ms)
    loss = seen.data.get("loss")
    tokens = int(seen.data.get("tokens") or 0)
    step_tokens = tokens / (last - first + 1) if tokens and last >= first else progress.step_tokens
    return dataclasses.replace(
        progress,
        step=max(last, first),
        step_at_ms=ended_ms,
        last_step_at_ms=max(progress.last_step_at_ms, ended_ms),
        loss=float(loss) if loss is not None and math.isfinite(loss) else progress.loss,
        tokens=min(MOST, progress.tokens + max(0, tokens)),
        step_ms=max(0.0, step_ms),
        step_tokens=step_tokens,
        flops_per_token=int(seen.data.get("flopsPerToken", progress.flops_per_token)),
    )
