"""Admission: an attempt may have pods at once, or when its preflight or Kueue lets it."""

from tpujob_operator.api import reasons
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.core.observations import FactKind
from tpujob_operator.core.plan import Note
from tpujob_operator.core.policies.preflight import is_held
from tpujob_operator.core.situation import NOTHING, Outcome, Situation, Verdict, fact

#: Kueue's words are read again this often.
_LOOK_S = 10.0
_CHECKED_FIRST = "The job waits for its preflight, see the condition Preflight."


def follow_queue(situation: Situation) -> Outcome:
    """Tell the ledger when the attempt begins to wait for quota, and when it has got it."""
    if situation.job.spec.suspend:  # who is not queued is not admitted by that
        return NOTHING
    is_known, is_queued = situation.history.ledger.queued, _is_queued(situation)
    if is_queued == is_known:
        is_kueues = is_queued and not _is_checked_first(situation)
        return Outcome(requeue_after_s=_LOOK_S) if is_kueues else NOTHING
    kind = FactKind.QUEUED if is_queued else FactKind.ADMITTED
    return Outcome(facts=(fact(situation, kind),), notes=_notes(situation, is_queued=is_queued))


def report_admission(situation: Situation) -> Outcome:
    """The job is admitted once its JobSet exists and may have pods."""
    jobset = situation.jobset
    if _is_checked_first(situation):
        verdict = Verdict(False, reasons.CHECKING, _CHECKED_FIRST)
    elif _is_queued(situation):
        verdict = Verdict(False, reasons.QUEUED, _waiting(situation))
    elif jobset is None or jobset.is_suspended:
        return NOTHING
    else:
        verdict = Verdict(True, reasons.ADMITTED, f"JobSet {jobset.name} may run its pods.")
    return Outcome(verdicts={ConditionType.ADMITTED: verdict})


def _is_queued(situation: Situation) -> bool:
    spec, jobset = situation.job.spec, situation.jobset
    if spec.suspend or situation.is_ending:
        return False
    if _is_checked_first(situation):
        return True
    if not spec.queue:
        return False
    if jobset is None:  # between two attempts it has no place in the queue, and needs one
        return situation.history.ledger.queued
    return jobset.is_suspended and not jobset.is_completed


def _is_checked_first(situation: Situation) -> bool:
    return situation.jobset is None and is_held(situation)


def _waiting(situation: Situation) -> str:
    words = situation.snapshot.quota.words
    asked = f"The job waits in the queue {situation.job.spec.queue}."
    return f"{asked} Kueue says: {words}" if words else asked


def _notes(situation: Situation, *, is_queued: bool) -> tuple[Note, ...]:
    if not situation.job.spec.queue or _is_checked_first(situation):
        return ()
    if not is_queued:
        message = f"The queue {situation.job.spec.queue} has given the job its quota."
        return (Note(reasons.ADMITTED, message),)
    history = situation.history
    if not history.ledger.bound and not history.ledger.complete and not history.ledger.generation:
        return (Note(reasons.QUEUED, _waiting(situation)),)
    message = (
        f"Kueue has taken the quota back: {situation.snapshot.quota.words or 'see its Workload'}. "
        f"The job goes on from step {history.progress.committed_step} when it has quota again."
    )
    return (Note(reasons.EVICTED, message, "Warning"),)
