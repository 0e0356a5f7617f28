"""What is known about the health of a job that trains: conditions with advice, and replacements."""

from tpujob_agent.protocol import REPLACED_WITHIN_S, Cause, Finding
from tpujob_operator.api import reasons
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.core.incidents import Rung
from tpujob_operator.core.plan import Delete, Note
from tpujob_operator.core.situation import NOTHING, Outcome, Situation, Verdict

#: Reasons of Degraded, the most telling finding first.
REASON_OF_FINDING = {
    Finding.STRAGGLER: reasons.STRAGGLER,
    Finding.SLOWDOWN: reasons.SLOWED_DOWN,
    Finding.RECOMPILING: reasons.RECOMPILING,
    Finding.INPUT_BOUND: reasons.INPUT_BOUND,
    Finding.SAVE_BOUND: reasons.SAVE_BOUND,
}


def report_findings(situation: Situation) -> Outcome:
    """Degraded while something about the job's health is not as it should be."""
    found = situation.history.findings.open
    if not found or situation.job.spec.suspend:
        return NOTHING
    first = min(found, key=lambda item: (list(REASON_OF_FINDING).index(item.kind), item.at_ms))
    verdict = Verdict(True, REASON_OF_FINDING[first.kind], first.message)
    return Outcome(verdicts={ConditionType.DEGRADED: verdict})


def replace_stragglers(situation: Situation) -> Outcome:
    """Delete the Job of a straggler that was given up: JobSet makes its slice anew at once."""
    given_up = {
        incident.pod
        for incident in situation.history.incidents.newest
        if incident.cause is Cause.STRAGGLER
        and incident.rung is Rung.POD
        and situation.now_ms - incident.at_ms < REPLACED_WITHIN_S * 1000
    }
    if not given_up or situation.job.spec.suspend or situation.is_ending:
        return NOTHING
    for job in situation.snapshot.current_jobs:
        pods = situation.snapshot.pods_of(job)
        pod = next((p for p in pods if p.name in given_up and not p.is_deleting), None)
        if pod is None or job.is_deleting:
            continue
        why = f"pod {pod.name} on node {pod.node or '-'} has held up the others"
        message = f"Slice {job.slice_index} is made anew: {why}."
        note = Note(reasons.SLICE_RESTARTED, message, "Warning")
        return Outcome(
            actions=(Delete(job.ref, why, needs_status=False, on_success=(note,)),),
            memory=situation.memory.replaced(job.name, situation.now_ms),
        )
    return NOTHING
