"""Preflight: a job that does not fit its chips is told so before it takes any.

A Job on a CPU node asks the TPU compiler. A job that has no JobSet waits for the answer; one
whose spec has changed goes on as it was made meanwhile. What cannot be checked is told, and holds
nobody up.
"""

from __future__ import annotations

import contextlib
import dataclasses

from tpujob_agent.preflight import Answer
from tpujob_agent.preflight import Verdict as Told
from tpujob_agent.protocol import ProtocolError
from tpujob_operator.api import reasons
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.api.spec import Preflight
from tpujob_operator.core import checks
from tpujob_operator.core.checks import Check
from tpujob_operator.core.manifests import names, preflight
from tpujob_operator.core.manifests.shape import changed_fields
from tpujob_operator.core.plan import Action, Create, Delete, Note
from tpujob_operator.core.policies.completion import failed
from tpujob_operator.core.situation import NOTHING, Outcome, Situation, Verdict
from tpujob_operator.core.views import JobView, PodView

#: A node for the pod may have to be made first.
_TO_START_MS = 600_000
#: The Job ends itself before.
_TO_END_MS = preflight.DEADLINE_S * 1000 + 60_000
_ENDED = ("Succeeded", "Failed")
#: How a condition begins to tell it, and its reason.
_ANSWERS = {
    Answer.FITS: ("The step", reasons.FITS),
    Answer.DOES_NOT_FIT: ("The step", reasons.DOES_NOT_FIT),
    Answer.INVALID: ("The trainer would refuse it:", reasons.INVALID_SPEC),
    Answer.UNABLE: ("It is not known whether the step fits, the job starts:", reasons.NOT_CHECKED),
}


def is_held(situation: Situation) -> bool:
    """Whether no attempt may begin from the present spec: it is not known to fit."""
    if not _is_asked_for(situation):
        return False
    check = _known(situation)
    return check is None or not check.lets_start


def judge_preflight(situation: Situation) -> Outcome:
    """Say what the preflight has found out; end a job that was never able to start."""
    if not _is_asked_for(situation):
        return NOTHING
    known = _known(situation)
    if not is_due(situation):  # an attempt has been made, with this answer or without any
        return Outcome(verdicts=_verdicts(known)) if known and known.answer else NOTHING
    check = _followed(situation, known or Check(_digest(situation), situation.now_ms))
    outcome = _judged(situation, check)
    if check == known:
        return outcome
    memory = dataclasses.replace(
        situation.memory, checks=checks.put(situation.memory.checks, check)
    )
    return dataclasses.replace(outcome, memory=memory, notes=_notes(check))


def run_preflight(situation: Situation) -> Outcome:
    """Make the Job of the preflight, and remove one that is not needed any more."""
    if not _is_asked_for(situation) or not is_due(situation):
        return NOTHING
    check, job = _known(situation), situation.snapshot.preflight
    if check is None:  # a later policy has ended the attempt: the next pass judges
        return NOTHING
    if job is None:
        manifest = preflight.build(situation.job, situation.snapshot.options)
        return Outcome(actions=() if check.answer else (Create(manifest),))
    return Outcome(actions=_deletion(situation, job, check))


def remove_preflight(situation: Situation) -> tuple[Action, ...]:
    """What is to be deleted of the preflight of a job that is over."""
    job = situation.snapshot.preflight
    is_under_way = any(not check.answer for check in situation.memory.checks)
    if job is None or not is_under_way or job.is_deleting:
        return ()
    return (Delete(job.ref, "the job has ended"),)


def _is_asked_for(situation: Situation) -> bool:
    return situation.job.spec.preflight is Preflight.COMPILE and not situation.is_ending


def is_due(situation: Situation) -> bool:
    """Whether an attempt would begin from the present spec now."""
    jobset = situation.jobset
    if situation.job.spec.suspend:
        return False
    return jobset is None or bool(changed_fields(jobset.shape, situation.job))


def _digest(situation: Situation) -> str:
    return preflight.checked(situation.job)


def _known(situation: Situation) -> Check | None:
    return checks.find(situation.memory.checks, _digest(situation))


def _pods(situation: Situation, check: Check) -> tuple[PodView, ...]:
    """Pods of the Job that makes this check."""
    job = situation.snapshot.preflight
    is_it = job is not None and job.checked == check.digest
    return situation.snapshot.pods_of(job) if job and is_it and _is_ours(situation, job) else ()


def _is_ours(situation: Situation, job: JobView) -> bool:
    return job.owner_uid == situation.snapshot.uid


def _followed(situation: Situation, check: Check) -> Check:
    """The check with its answer, as soon as there is one."""
    job = situation.snapshot.preflight
    if check.answer:
        return check
    if job and job.checked == check.digest and _is_ours(situation, job):
        told = _told(job, _pods(situation, check))
        if told is not None:
            return dataclasses.replace(check, answer=told.answer.value, message=told.message)
    if situation.now_ms < _ends_ms(situation, check):
        return check
    why = _hindrance(situation, check) or "its pod runs still"
    message = f"it has not ended in time: {why}"
    return dataclasses.replace(check, answer=Answer.UNABLE.value, message=message)


def _told(job: JobView, pods: tuple[PodView, ...]) -> Told | None:
    """What a pod has said, or that the Job has ended without a word; None: it is under way."""
    for pod in pods:
        with contextlib.suppress(ProtocolError):
            return Told.from_json(pod.last_words[1])
    if not job.is_over or any(pod.phase not in _ENDED for pod in pods):  # pods may be seen later
        return None
    words = [": ".join(filter(None, pod.last_words)) for pod in pods]
    message = next(filter(None, [*words, job.failure]), "it has ended without an answer")
    return Told(Answer.UNABLE, message)


def _ends_ms(situation: Situation, check: Check) -> int:
    has_run = any(pod.phase not in ("", "Pending") for pod in _pods(situation, check))
    return check.since_ms + (_TO_END_MS if has_run else _TO_START_MS)


def _hindrance(situation: Situation, check: Check) -> str:
    """Why its pod does not run, as far as anybody says."""
    for pod in _pods(situation, check):
        if pod.unschedulable or pod.waiting:
            return pod.unschedulable or ": ".join(filter(None, pod.waiting or ()))
    unmade = situation.snapshot.unmade.get(names.preflight_job(situation.snapshot.key.name))
    return next(filter(None, [unmade, *situation.snapshot.refusals]), "")


def _judged(situation: Situation, check: Check) -> Outcome:
    verdicts = _verdicts(check, _hindrance(situation, check))
    verdict = verdicts[ConditionType.PREFLIGHT]
    if not check.answer:
        wait_ms = _ends_ms(situation, check) - situation.now_ms
        return Outcome(verdicts=verdicts, requeue_after_s=wait_ms / 1000)
    if check.lets_start:
        return Outcome(verdicts=verdicts)
    if situation.attempt <= 1 and situation.jobset is None:
        advice = f"{verdict.message} No chip was taken: correct the spec and create the job again"
        outcome = failed(situation, verdict.reason, advice)
        return dataclasses.replace(outcome, verdicts={**outcome.verdicts, **verdicts})
    goes_on = "The job goes on as it was made" if situation.jobset else "No attempt begins"
    message = f"The changed spec cannot be run. {verdict.message} {goes_on}: correct the spec."
    stalled = Verdict(True, verdict.reason, message)
    return Outcome(verdicts={**verdicts, ConditionType.STALLED: stalled})


def _verdicts(check: Check, hindrance: str = "") -> dict[ConditionType, Verdict]:
    if check.answer:
        answer = Answer(check.answer)
        begin, reason = _ANSWERS[answer]
        verdict = Verdict(answer is Answer.FITS, reason, f"{begin} {check.message.rstrip('.')}.")
    else:
        message = "The TPU compiler is asked whether the job fits; no chip is taken meanwhile."
        why = f" So far its pod does not run: {hindrance}" if hindrance else ""
        verdict = Verdict(False, reasons.CHECKING, message + why)
    return {ConditionType.PREFLIGHT: verdict}


def _notes(check: Check) -> tuple[Note, ...]:
    verdict = _verdicts(check)[ConditionType.PREFLIGHT]
    if check.answer and not check.lets_start:
        return ()  # a condition has the event
    is_lost = check.answer == Answer.UNABLE
    return (Note(verdict.reason, verdict.message, "Warning" if is_lost else "Normal"),)


def _deletion(situation: Situation, job: JobView, check: Check) -> tuple[Action, ...]:
    """A Job is deleted that checks another spec than is asked about, or has been given up."""
    if not _is_ours(situation, job) or job.is_deleting:
        return ()  # the garbage collector removes a namesake's
    if job.checked != check.digest:
        return () if check.answer else (Delete(job.ref, "it checks an earlier spec"),)
    if check.answer and _told(job, _pods(situation, check)) is None:
        return (Delete(job.ref, "its answer is not waited for any longer"),)
    return ()
