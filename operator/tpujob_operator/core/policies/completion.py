"""The end of a job: done, given up, or out of time."""

from tpujob_agent.protocol import Budget
from tpujob_operator.api import reasons
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.core.observations import FactKind
from tpujob_operator.core.plan import Delete
from tpujob_operator.core.situation import NOTHING, Outcome, Situation, Verdict, fact
from tpujob_operator.core.timetypes import TimeType
from tpujob_operator.core.views import JobView


def succeed_when_done(situation: Situation) -> Outcome:
    """The job has succeeded when every trainer is done, by the coordinator's word or its exit."""
    jobset = situation.jobset
    is_done = situation.history.finished or (
        jobset is not None
        and (jobset.is_completed or any(map(_has_ended_well, situation.snapshot.current_jobs)))
    )
    if not is_done:
        return NOTHING
    step = situation.history.progress.step
    is_unseen = situation.job.spec.recovery.recreates_pods
    unseen = "The programs of all hosts have ended well."
    message = unseen if is_unseen else f"All trainers are done, after step {step}."
    return Outcome(
        facts=(fact(situation, FactKind.SUCCEEDED),),
        verdicts={ConditionType.SUCCEEDED: Verdict(True, reasons.COMPLETED, message)},
        is_final=True,
    )


def _has_ended_well(job: JobView) -> bool:
    return job.is_coordinator and job.is_succeeded


def fail_when_given_up(situation: Situation) -> Outcome:
    """The job has failed when the coordinator has spent a budget."""
    history = situation.history
    if not history.gave_up:
        return NOTHING
    return _spent(situation, history.gave_up, is_user_error=history.gave_up_cause == "userError")


def fail_beyond_budgets(situation: Situation) -> Outcome:
    """The job has failed when it runs on though a budget is spent.

    A coordinator counts for itself, and a new one begins with what it was told when
    the attempt was made: only here is everything counted.
    """
    return over_budget(situation) if situation.history.ledger.generation else NOTHING


def over_budget(situation: Situation) -> Outcome:
    """The failure of a job that has had more restarts than it may; nothing if it has not."""
    incidents = situation.history.incidents
    counts = {**incidents.used, Budget.NO_PROGRESS: incidents.losses_without_commit}
    limits = situation.job.spec.recovery.budgets.to_json()
    if not incidents.newest:
        return NOTHING
    for budget, count in counts.items():
        limit = limits[budget.value]
        if 0 <= limit < count:
            words = (
                f"budget {budget} spent: {count} restarts, {limit} allowed, the last one after: "
                f"{incidents.newest[-1].message}"
            )
            return _spent(situation, words, is_user_error=budget is Budget.USER_ERROR)
    return NOTHING


def _spent(situation: Situation, words: str, *, is_user_error: bool) -> Outcome:
    advice = (
        "Correct the program and create the job again"
        if is_user_error
        else "Look at status.incidents, correct what keeps failing, and create the job again"
    )
    return failed(situation, reasons.BUDGET_SPENT, f"{words.rstrip('.')}. {advice}")


def fail_after_deadline(situation: Situation) -> Outcome:
    """The job has failed when ``activeDeadlineSeconds`` have passed, suspended time excluded."""
    deadline_s = situation.job.spec.active_deadline_seconds
    if deadline_s is None:
        return NOTHING
    view = situation.history.ledger.view(situation.now_ms)
    paused_ms = sum(view.by_type_ms.get(kind, 0) for kind in (TimeType.SUSPENDED, TimeType.QUEUED))
    rest_ms = deadline_s * 1000 - (view.wall_ms - paused_ms)
    if rest_ms > 0:
        # A suspended job does not come closer to its deadline, so it need not be looked at.
        is_paused = situation.job.spec.suspend
        return Outcome(requeue_after_s=None if is_paused else rest_ms / 1000)
    return failed(
        situation,
        reasons.DEADLINE_EXCEEDED,
        f"The job was active for longer than activeDeadlineSeconds ({deadline_s}). "
        "Create it again with a longer deadline",
    )


def failed(situation: Situation, reason: str, message: str) -> Outcome:
    """The outcome of a job that has failed: say so, and stop everything.

    ``message`` ends with what to do, without a full stop.
    """
    checkpoint = situation.history.progress.committed_step
    resume = f"; it would resume from the checkpoint of step {checkpoint}" if checkpoint else ""
    is_unseen = situation.job.spec.recovery.recreates_pods
    last = "" if is_unseen else f" (last step {situation.history.progress.step})"
    said = f"{message}{resume}{last}."
    verdict = Verdict(True, reason, said)
    return Outcome(
        actions=tuple(
            Delete(jobset.ref, "the job has failed")
            for jobset in situation.snapshot.own_jobsets
            if not jobset.is_deleting
        ),
        facts=(fact(situation, FactKind.FAILED),),
        verdicts={ConditionType.FAILED: verdict, ConditionType.STALLED: verdict},
        is_final=True,
    )
