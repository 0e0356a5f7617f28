"""A job that has reached its end never runs again; what is left of it is cleared away."""

from tpujob_operator.api import reasons
from tpujob_operator.api.base import parse_rfc3339
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.core.manifests.names import ENDED_ANNOTATION
from tpujob_operator.core.observations import FactKind
from tpujob_operator.core.plan import Action, Delete, Patch
from tpujob_operator.core.policies.ahead import remove_ahead
from tpujob_operator.core.policies.completion import failed
from tpujob_operator.core.policies.preflight import remove_preflight
from tpujob_operator.core.situation import NOTHING, Outcome, Situation, Verdict, earliest, fact

#: A coordinator ends by itself once its last event was read; after this time it is ended.
_CLOSING_MS = 30_000
_RUN_AGAIN = f"To run it, remove the annotation {ENDED_ANNOTATION} and create the job again"


def clear_after_finished(situation: Situation) -> Outcome:
    """Remove the children of a failed job, and the job itself once its time to live is over."""
    snapshot = situation.snapshot
    if not snapshot.is_over:
        return NOTHING
    finished_ms = _finished_ms(situation)
    actions = (
        *_mark(situation),
        *_leftover_jobsets(situation, finished_ms),
        *remove_preflight(situation),
        *remove_ahead(situation),
    )
    waits = [_closing_wait_s(situation, finished_ms)]
    ttl_s = snapshot.job.spec.ttl_seconds_after_finished if snapshot.job else None
    if ttl_s is not None:
        rest_ms = finished_ms + ttl_s * 1000 - situation.now_ms
        if rest_ms <= 0:
            actions = (Delete(snapshot.ref, "its time to live is over"),)
        waits.append(rest_ms / 1000 if rest_ms > 0 else None)
    return Outcome(
        actions=actions, requeue_after_s=earliest(*waits), is_final=True, keeps_status=True
    )


def keep_end(situation: Situation) -> Outcome:
    """A job whose status was lost after its end does not run again."""
    state, uid = situation.snapshot.end_mark
    if not state:
        return NOTHING
    if uid != situation.snapshot.uid:
        message = (
            f"The annotation {ENDED_ANNOTATION} says that the job has ended ({state}): it was "
            f"copied, or restored from a backup. {_RUN_AGAIN}."
        )
        verdict = Verdict(True, reasons.ENDED_BEFORE, message)
        return Outcome(verdicts={ConditionType.STALLED: verdict}, is_final=True)
    message = f"The job had ended ({state}) before its status was lost"
    if state == ConditionType.SUCCEEDED.value:
        return Outcome(
            facts=(fact(situation, FactKind.SUCCEEDED),),
            verdicts={ConditionType.SUCCEEDED: Verdict(True, reasons.COMPLETED, f"{message}.")},
            is_final=True,
        )
    return failed(situation, reasons.ENDED_BEFORE, f"{message}. {_RUN_AGAIN}")


def _mark(situation: Situation) -> tuple[Action, ...]:
    """Say on the job itself that it has ended, and how."""
    snapshot = situation.snapshot
    kinds = (ConditionType.SUCCEEDED, ConditionType.FAILED)
    state = next(kind.value for kind in kinds if snapshot.has_condition(kind))
    if snapshot.end_mark == (state, snapshot.uid):
        return ()
    annotations = {ENDED_ANNOTATION: f"{state} {snapshot.uid}"}
    return (Patch(snapshot.ref, {"metadata": {"annotations": annotations}}),)


def _finished_ms(situation: Situation) -> int:
    """When the job ended; where nobody has written that down, when its condition says so."""
    status = situation.snapshot.status
    ends = (item for item in status["conditions"] if item["type"] in ("Succeeded", "Failed"))
    times = [item.get("lastTransitionTime") for item in ends if item["status"] == "True"]
    said = next(filter(None, [status.get("finishedAt"), *times]), None)
    return parse_rfc3339(str(said)) if said else situation.now_ms


def _leftover_jobsets(situation: Situation, finished_ms: int) -> tuple[Action, ...]:
    has_closed = situation.now_ms - finished_ms >= _CLOSING_MS
    return tuple(
        Delete(jobset.ref, "the job has ended")
        for jobset in situation.snapshot.own_jobsets
        if not jobset.is_deleting
        # a completed JobSet keeps the coordinator's log
        and not jobset.is_completed
        and (has_closed or situation.snapshot.has_condition("Failed"))
    )


def _closing_wait_s(situation: Situation, finished_ms: int) -> float | None:
    rest_ms = finished_ms + _CLOSING_MS - situation.now_ms
    is_open = any(not jobset.is_completed for jobset in situation.snapshot.own_jobsets)
    return rest_ms / 1000 if is_open and rest_ms > 0 else None
