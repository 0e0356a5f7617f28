"""Suspension: the JobSet is suspended with the job, and resumed with it.

In a queue it is Kueue that suspends and resumes the JobSet, and it would start again what
somebody else has suspended. There a suspended job gives up its JobSet, and its place.
"""

import dataclasses

from tpujob_operator.api import reasons
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.core.observations import FactKind
from tpujob_operator.core.plan import Delete, Note, Patch
from tpujob_operator.core.situation import NOTHING, Outcome, Situation, Verdict, fact


def follow_suspend(situation: Situation) -> Outcome:
    """Carry ``spec.suspend`` over to the JobSet, and account for the time."""
    wanted = situation.job.spec.suspend
    jobset = situation.jobset
    if situation.job.spec.queue:
        return _follow_in_queue(situation)
    differs = jobset is not None and not jobset.is_deleting and jobset.is_suspended != wanted
    actions = (
        (Patch(jobset.ref, {"spec": {"suspend": wanted}}, needs_status=False),)
        if jobset is not None and differs
        else ()
    )
    if wanted:
        return _suspended(situation, actions)
    return _resumed(situation, actions)


def _follow_in_queue(situation: Situation) -> Outcome:
    jobset = situation.jobset
    if not situation.job.spec.suspend:
        return _resumed(situation, ())
    outcome = _suspended(situation, ())
    if jobset is None or jobset.is_deleting:
        return outcome
    return dataclasses.replace(
        outcome,
        actions=(Delete(jobset.ref, "the job is suspended"),),
        memory=situation.memory.of_next_attempt(situation.history.progress.committed_step),
        attempt=situation.attempt + 1,
    )


def _resumed(situation: Situation, actions: tuple[Patch, ...]) -> Outcome:
    if not situation.history.ledger.suspended:
        return Outcome(actions=actions) if actions else NOTHING
    return Outcome(
        actions=actions,
        facts=(fact(situation, FactKind.RESUMED),),
        notes=(Note(reasons.RESUMED, "The job is resumed; its pods are made anew."),),
    )


def _suspended(situation: Situation, actions: tuple[Patch, ...]) -> Outcome:
    step = situation.history.progress.committed_step
    is_ending = any(pod.is_alive for pod in situation.snapshot.pods)
    pods = "The job's last pods are still ending" if is_ending else "The job has no pods"
    then = f"to go on from step {step}" if step else "to start it"
    message = f"{pods}; set spec.suspend to false {then}."
    verdicts = {ConditionType.SUSPENDED: Verdict(True, reasons.SUSPENDED_BY_SPEC, message)}
    if situation.history.ledger.suspended:
        return Outcome(actions=actions, verdicts=verdicts)
    return Outcome(
        actions=actions,
        verdicts=verdicts,
        facts=(fact(situation, FactKind.SUSPENDED),),
    )
