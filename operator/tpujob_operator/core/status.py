"""The status of a job: made anew in every pass, written only if it says something new."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tpujob_agent.protocol import Cause
from tpujob_operator.api import reasons
from tpujob_operator.api.base import rfc3339
from tpujob_operator.api.conditions import ConditionType, find_condition, set_condition
from tpujob_operator.api.models import parse_status
from tpujob_operator.api.status import Condition, ConditionStatus, JobStatus, Slices, State
from tpujob_operator.core.cost import cost_view
from tpujob_operator.core.forms import FORMS
from tpujob_operator.core.history import History
from tpujob_operator.core.incidents import Incident, Rung
from tpujob_operator.core.plan import Note
from tpujob_operator.core.policies.placement import suspects_of
from tpujob_operator.core.policies.progress import REASON_OF_CAUSE, place_of
from tpujob_operator.core.served import fitted
from tpujob_operator.core.situation import Situation, Verdict
from tpujob_operator.core.statusviews import (
    budgets_view,
    checkpoint_view,
    findings_view,
    goodput_view,
    incidents_view,
    nodes_view,
    progress_view,
)

#: Fields that change with every step; alone they are written only now and then.
_VOLATILE = ("step", "checkpoint", "progress", "goodput", "cost", "ledger")

_NEGATIVE: dict[ConditionType, tuple[str, str]] = {
    ConditionType.ADMITTED: (reasons.WAITING_FOR_PODS, "The job has no JobSet that may run."),
    ConditionType.READY: (reasons.NOT_TRAINING, "No step is being trained right now."),
    ConditionType.PROGRESSING: (reasons.NOT_TRAINING, "Nothing is under way."),
    ConditionType.RESTARTING: (reasons.RECOVERED, "There is nothing to recover from."),
    ConditionType.DEGRADED: (reasons.AS_WANTED, "The job has all the hosts it wants."),
    ConditionType.STALLED: (reasons.NOT_STALLED, "Nothing stands in the way."),
    ConditionType.SUSPENDED: (reasons.NOT_SUSPENDED, "spec.suspend is false."),
    ConditionType.SUCCEEDED: (reasons.RUNNING, "The job has not reached its end."),
    ConditionType.FAILED: (reasons.RUNNING, "The job has not failed."),
}
#: Events of one pass about incidents.
_MOST_LOSSES = 5
#: Conditions whose becoming true is worth an event, and the type of the event.
_ANNOUNCED: dict[ConditionType, bool] = {
    ConditionType.RESTARTING: True,
    ConditionType.DEGRADED: True,
    ConditionType.STALLED: True,
    ConditionType.SUSPENDED: False,
    ConditionType.SUCCEEDED: False,
    ConditionType.FAILED: True,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """The status to write, if any, the events that go with it, and when to look again."""

    status: Mapping[str, Any] | None = None
    notes: tuple[Note, ...] = ()
    requeue_after_s: float | None = None


def write(situation: Situation) -> Written:
    """The new status, if it differs from the present one by more than what may wait."""
    snapshot = situation.snapshot
    old = parse_status(snapshot.obj)
    conditions = _conditions(situation, tuple(old.conditions))
    new = _status(situation, old, conditions).to_json()
    if snapshot.cluster.status_schema is not None:
        new = fitted(new, snapshot.cluster.status_schema)
    if new == snapshot.status:
        return Written()
    notes = (
        *_unread(snapshot.unread),
        *_skips(situation.history, old),
        *_losses(situation, old),
        *_suspicions(situation, old),
        *_notes(tuple(old.conditions), conditions),
    )
    wait_ms = snapshot.status_written_ms + snapshot.cluster.status_interval_ms - situation.now_ms
    if wait_ms > 0 and _steady(new) == _steady(snapshot.status):
        return Written(requeue_after_s=wait_ms / 1000)
    return Written(status=new, notes=notes)


def _steady(status: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in status.items() if name not in _VOLATILE}


def _status(situation: Situation, old: JobStatus, conditions: tuple[Condition, ...]) -> JobStatus:
    snapshot, history, now_ms = situation.snapshot, situation.history, situation.now_ms
    job, prices = snapshot.job, snapshot.options.prices
    ledger = _stored(FORMS.write({**history.to_json(), "operator": situation.memory.to_json()}))
    is_over = history.ledger.ended
    has_begun = history.progress.step > 0 or history.ledger.is_training
    is_same = old.ledger == ledger and old.goodput is not None
    return JobStatus(
        observed_generation=snapshot.obj["metadata"].get("generation"),
        state=_state(situation, conditions),
        conditions=list(conditions),
        attempt=situation.attempt or None,
        generation=history.generation,
        slices=_slices(situation) if job else old.slices,
        hosts=situation.hosts if job else old.hosts,
        step=history.progress.step,
        checkpoint=checkpoint_view(history),
        progress=progress_view(history, job),
        goodput=old.goodput if is_same else goodput_view(history, now_ms),
        cost=old.cost if is_same or not job else cost_view(history, now_ms, job, prices),
        incidents=incidents_view(history),
        findings=findings_view(history),
        budgets=budgets_view(history, job),
        nodes=nodes_view(suspects_of(situation)),
        restarts=history.incidents.restarts,
        started_at=old.started_at or (rfc3339(now_ms) if has_begun else None),
        finished_at=old.finished_at or (rfc3339(now_ms) if is_over else None),
        ledger=ledger,
    )


def _stored(value: Any) -> Any:
    """A JSON value as it comes back: in a merge patch a null deletes its key."""
    if isinstance(value, Mapping):
        return {name: _stored(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_stored(item) for item in value]
    return value


def _slices(situation: Situation) -> Slices:
    hosts = situation.job.shape.hosts
    ready: dict[int, int] = {}
    for pod in situation.snapshot.workers:
        if pod.is_ready and not pod.is_lost and situation.attempt == situation.snapshot.attempt:
            ready[pod.place[0]] = ready.get(pod.place[0], 0) + 1
    whole = sum(1 for count in ready.values() if count >= hosts)
    wanted, history = situation.job.spec.slices, situation.history
    taken = history.hosts // hosts if history.ledger.generation else wanted
    running = min(whole, taken)
    return Slices(wanted=wanted, running=running, spare=whole - running)


def _conditions(situation: Situation, old: tuple[Condition, ...]) -> tuple[Condition, ...]:
    conditions: tuple[Condition, ...] = ()
    for kind in ConditionType:
        before = find_condition(old, kind)
        if kind not in _NEGATIVE and kind not in situation.verdicts and before is None:
            continue  # nobody has asked
        verdict = _verdict(situation, kind, before)
        conditions = set_condition(
            (*conditions, *(item for item in old if item.type == kind)),
            kind,
            verdict.is_true,
            verdict.reason,
            verdict.message,
            now_ms=situation.now_ms,
            observed_generation=situation.snapshot.obj["metadata"].get("generation"),
        )
    return conditions


def _verdict(situation: Situation, kind: ConditionType, old: Condition | None) -> Verdict:
    given = situation.verdicts.get(kind)
    if given is not None:
        return given
    done = situation.verdicts.get(ConditionType.SUCCEEDED)
    if done is not None and kind is ConditionType.READY:
        # Tools that wait for Ready (kstatus) take a finished job as what was asked for.
        return Verdict(True, done.reason, done.message)
    has_ended = situation.history.ledger.ended and kind is ConditionType.ADMITTED
    if old is not None and (has_ended or kind is ConditionType.PREFLIGHT):
        # The end takes nothing back, and an answer holds until there is another one.
        return Verdict(old.status is ConditionStatus.TRUE, old.reason, old.message)
    return Verdict(False, *_NEGATIVE[kind])


def _state(situation: Situation, conditions: tuple[Condition, ...]) -> State:
    def holds(kind: ConditionType) -> bool:
        found = find_condition(conditions, kind)
        return found is not None and found.status is ConditionStatus.TRUE

    ledger = situation.history.ledger
    ends = {
        ConditionType.FAILED: State.FAILED,
        ConditionType.SUCCEEDED: State.SUCCEEDED,
        ConditionType.SUSPENDED: State.SUSPENDED,
    }
    for kind, state in ends.items():
        if holds(kind):
            return state
    if ledger.queued:
        return State.QUEUED
    if holds(ConditionType.RESTARTING):
        return State.RECOVERING
    if ledger.has_reached_steps or situation.is_ending:
        return State.RUNNING
    is_starting = ledger.generation or ledger.complete or ledger.bound
    return State.STARTING if is_starting else State.PENDING


def _unread(why: str) -> tuple[Note, ...]:
    message = (
        f"What was known of the job could not be read and is begun anew: {why}. The job itself "
        "goes on; incidents, budgets used and times are those of its present attempt. After a "
        "roll-back of the operator, install the newer release again."
    )
    return (Note(reasons.HISTORY_LOST, message, "Warning"),) if why else ()


def _skips(history: History, old: JobStatus) -> tuple[Note, ...]:
    """An event for the first malformed event of a job's coordinator; a metric counts them all."""
    if not history.skipped.count or ((old.ledger or {}).get("skipped") or {}).get("count"):
        return ()
    message = (
        f"An event of the coordinator is malformed and was left out: {history.skipped.why}. Step, "
        "times and incidents may be wrong here; the job itself is not affected. Only a defect, or "
        "a program that writes to the coordinator itself, does this."
    )
    return (Note(reasons.EVENTS_SKIPPED, message, "Warning"),)


def _losses(situation: Situation, old: JobStatus) -> tuple[Note, ...]:
    """An event for each new incident, also for one that was over before it could be seen."""
    incidents = situation.history.incidents
    number = incidents.restarts - (old.restarts or 0)
    newest = incidents.newest[-min(number, _MOST_LOSSES) :] if number > 0 else ()
    return tuple(
        Note(
            REASON_OF_CAUSE[item.cause],
            f"{place_of(item)}: {item.message or item.cause.value}. {_answer(item)}",
            "Warning",
        )
        for item in newest
        # the condition has an event of its own
        if (item.rung, item.cause) != (Rung.ATTEMPT, Cause.COORDINATOR)
    )


def _answer(incident: Incident) -> str:
    if incident.rung is Rung.ATTEMPT:
        return "All pods of the job are made anew."
    return f"Training goes on from the last checkpoint at or before step {incident.step}."


def _suspicions(situation: Situation, old: JobStatus) -> tuple[Note, ...]:
    known = {item.name for item in old.nodes.suspected} if old.nodes else set()
    return tuple(
        Note(
            reasons.NODE_SUSPECTED,
            f"Node {item.name}: {item.reason}. The next attempt avoids it.",
            "Warning",
        )
        for item in suspects_of(situation)
        if item.name not in known
    )


def _notes(old: tuple[Condition, ...], new: tuple[Condition, ...]) -> tuple[Note, ...]:
    notes: dict[tuple[str, str], Note] = {}
    for condition in new:
        before = find_condition(old, ConditionType(condition.type))
        is_same = before is not None and (before.status, before.reason) == (
            condition.status,
            condition.reason,
        )
        note = None if is_same else _note(before, condition)
        if note is not None:
            notes[note.reason, note.message] = note
    return tuple(notes.values())


def _note(before: Condition | None, condition: Condition) -> Note | None:
    kind = ConditionType(condition.type)
    is_true = condition.status is ConditionStatus.TRUE
    # A restart's events are made from its incidents, but for a failed attempt's.
    if kind is ConditionType.RESTARTING and is_true and condition.reason != reasons.ATTEMPT_FAILED:
        return None
    if is_true and kind in _ANNOUNCED:
        return Note(
            condition.reason, condition.message, "Warning" if _ANNOUNCED[kind] else "Normal"
        )
    if condition.reason == reasons.UNSCHEDULABLE:
        return Note(condition.reason, condition.message, "Warning")
    was_true = before is not None and before.status is ConditionStatus.TRUE
    if was_true and kind is ConditionType.RESTARTING:
        return Note(reasons.RECOVERED, "The job has recovered and trains on.")
    if was_true and kind is ConditionType.STALLED:
        return Note(reasons.NOT_STALLED, condition.message)
    return None
