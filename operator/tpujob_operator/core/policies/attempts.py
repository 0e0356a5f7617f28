"""Attempts: one JobSet each, never two of them alive."""

import dataclasses

from tpujob_agent.protocol import Budget, Cause, Event, EventKind
from tpujob_operator.api import reasons
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.core.manifests.shape import changed_fields
from tpujob_operator.core.observations import Fact, FactKind
from tpujob_operator.core.plan import Delete, Note
from tpujob_operator.core.policies.completion import failed
from tpujob_operator.core.policies.preflight import is_held
from tpujob_operator.core.situation import NOTHING, Outcome, Situation, Verdict, fact
from tpujob_operator.core.views import JobSetView

_FIRST_DELAY_MS = 1_000
LONGEST_DELAY_MS = 300_000


def begin_first_attempt(situation: Situation) -> Outcome:
    """Number the first attempt, so that the number is written down before anything is made."""
    return NOTHING if situation.attempt else Outcome(attempt=1)


def restart_failed_attempt(situation: Situation) -> Outcome:
    """Replace a JobSet that has failed by another attempt, within the budget."""
    jobset = situation.jobset
    if jobset is None or jobset.failure is None or not jobset.has_agents:
        return NOTHING
    memory = situation.memory
    committed = situation.history.progress.committed_step
    fruitless = 1 if _has_progress(situation) else memory.attempts_without_commit + 1
    limit = situation.job.spec.recovery.budgets.no_progress
    if 0 <= limit < fruitless:
        return failed(
            situation,
            reasons.BUDGET_SPENT,
            f"{fruitless} attempts failed without a new checkpoint, the last one with: "
            f"{jobset.failure}. Look at the events of the job's pods, correct the cause and "
            "create the job again",
        )
    delay_ms = min(LONGEST_DELAY_MS, _FIRST_DELAY_MS << min(fruitless - 1, 10))
    until_ms = situation.now_ms + delay_ms
    message = (
        f"Attempt {situation.attempt} failed: {jobset.failure}. "
        f"Attempt {situation.attempt + 1} begins in {delay_ms // 1000} s."
    )
    return Outcome(
        actions=() if jobset.is_deleting else (Delete(jobset.ref, "the attempt has failed"),),
        facts=(
            _failure(situation, jobset.failure),
            backoff(situation, until_ms, Cause.COORDINATOR),
        ),
        verdicts={ConditionType.RESTARTING: Verdict(True, reasons.ATTEMPT_FAILED, message)},
        memory=dataclasses.replace(
            memory,
            attempts_without_commit=fruitless,
            committed_at_attempt=committed,
            next_attempt_ms=until_ms,
            replacements={},
        ),
        attempt=situation.attempt + 1,
    )


def restart_changed_attempt(situation: Situation) -> Outcome:
    """Replace an attempt by one that is made from the changed spec; the old one saves first."""
    jobset = situation.jobset
    if jobset is None or jobset.is_deleting or situation.is_ending or is_held(situation):
        return NOTHING
    fields = changed_fields(jobset.shape, situation.job)
    if not fields:
        return NOTHING
    message = (
        f"Changed: {', '.join(f'spec.{field}' for field in fields)}. Attempt {situation.attempt} "
        f"saves and ends; attempt {situation.attempt + 1} resumes from its checkpoint."
    )
    return leave_attempt(
        situation, jobset, "the spec has changed", Note(reasons.SPEC_CHANGED, message)
    )


def ask_for_quota_anew(situation: Situation) -> Outcome:
    """Replace an attempt to which Kueue never again gives quota, if it has got on with its own.

    So ends the run time of nodes that were provisioned for one JobSet. An attempt that has
    committed nothing is left waiting: another one would fare no better.
    """
    jobset = situation.jobset
    if jobset is None or jobset.is_deleting or situation.is_ending or situation.job.spec.suspend:
        return NOTHING
    if not situation.snapshot.quota.is_refused or not _has_progress(situation):
        return NOTHING
    step = situation.history.progress.committed_step
    message = (
        f"Kueue gives attempt {situation.attempt} no quota any more; attempt "
        f"{situation.attempt + 1} asks anew and resumes from step {step}."
    )
    note = Note(reasons.NEW_ATTEMPT, message)
    return leave_attempt(situation, jobset, "its quota was refused for good", note)


def _has_progress(situation: Situation) -> bool:
    """Whether the attempt has committed a checkpoint."""
    committed = situation.history.progress.committed_step
    return committed > situation.memory.committed_at_attempt


def leave_attempt(situation: Situation, jobset: JobSetView, why: str, note: Note) -> Outcome:
    """Have the present attempt save and go, and another one begin."""
    return Outcome(
        actions=(Delete(jobset.ref, why),),
        facts=(fact(situation, FactKind.ATTEMPT_LEFT),),
        notes=(note,),
        memory=situation.memory.of_next_attempt(situation.history.progress.committed_step),
        attempt=situation.attempt + 1,
    )


def budgets_used(situation: Situation) -> dict[str, int]:
    """Restarts that earlier attempts have used, by budget, for the next coordinator."""
    return {
        budget.value: situation.history.incidents.used.get(budget, 0)
        for budget in Budget
        if budget is not Budget.NO_PROGRESS
    }


def _failure(situation: Situation, message: str) -> Fact:
    data = {
        "cause": Cause.COORDINATOR.value,
        "onsetAtMs": situation.now_ms,
        "step": situation.history.progress.step,
        "message": message,
    }
    return Fact(situation.now_ms, FactKind.ATTEMPT_FAILED, data)


def backoff(situation: Situation, until_ms: int, cause: Cause) -> Event:
    """The next attempt begins then at the earliest."""
    data = {"untilAtMs": until_ms, "cause": cause.value}
    return Event(0, situation.now_ms, EventKind.BACKOFF, data)
