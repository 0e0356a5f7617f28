"""Suspension: the JobSet is suspended with the job, and resumed with it."""

from tpujob_operator.api import reasons
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.core.observations import FactKind
from tpujob_operator.core.plan import Note, Patch
from tpujob_operator.core.situation import NOTHING, Outcome, Situation, Verdict, fact


def follow_suspend(situation: Situation) -> Outcome:
    """Carry ``spec.suspend`` over to the JobSet, and account for the time."""
    wanted = situation.job.spec.suspend
    jobset = situation.jobset
    differs = jobset is not None and not jobset.is_deleting and jobset.is_suspended != wanted
    actions = (
        (Patch(jobset.ref, {"spec": {"suspend": wanted}}),)
        if jobset is not None and differs
        else ()
    )
    if wanted:
        return _suspended(situation, actions)
    if not situation.history.ledger.suspended:
        return Outcome(actions=actions) if actions else NOTHING
    return Outcome(
        actions=actions,
        facts=(fact(situation, FactKind.RESUMED),),
        notes=(Note(reasons.RESUMED, "The job is resumed; its pods are made anew."),),
    )


def _suspended(situation: Situation, actions: tuple[Patch, ...]) -> Outcome:
    step = situation.history.progress.committed_step
    message = (
        f"The job has no pods; set spec.suspend to false to go on from step {step}."
        if step
        else "The job has no pods; set spec.suspend to false to start it."
    )
    verdicts = {ConditionType.SUSPENDED: Verdict(True, reasons.SUSPENDED_BY_SPEC, message)}
    if situation.history.ledger.suspended:
        return Outcome(actions=actions, verdicts=verdicts)
    return Outcome(
        actions=actions,
        verdicts=verdicts,
        facts=(fact(situation, FactKind.SUSPENDED),),
    )
