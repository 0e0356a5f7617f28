"""Lost pods: the Job of a slice that has lost a pod is deleted, and JobSet makes it anew at once.

The Job controller alone would wait 10 s, then 20 s, 40 s … before it replaces a
pod, and a TPU slice that has lost a host is broken as a whole anyway.
"""

from tpujob_operator.api import reasons
from tpujob_operator.core.memory import Replacements
from tpujob_operator.core.plan import Delete, Note
from tpujob_operator.core.situation import NOTHING, Outcome, Situation
from tpujob_operator.core.views import JobView


def replace_broken_jobs(situation: Situation) -> Outcome:
    """Delete each Job that has lost a pod, once, unless pods are meant to go."""
    jobset = situation.jobset
    is_calm = (
        jobset is None
        or jobset.is_deleting
        or jobset.is_suspended
        or jobset.is_completed
        or jobset.failure is not None
        or situation.job.spec.suspend
        or situation.is_ending
    )
    if is_calm:
        return NOTHING
    outcome = NOTHING
    for job in situation.snapshot.current_jobs:
        lost = _loss(situation, job)
        if lost:
            step = _replace(situation.after(outcome), job, lost)
            outcome = _both(outcome, step)
    return outcome


def _loss(situation: Situation, job: JobView) -> str:
    """What was lost of a Job, in words; empty: nothing."""
    if job.is_deleting or job.is_suspended or job.is_over or not job.started:
        return ""
    # A Job outlives its suspension: pods from before it was resumed went because they should.
    pods = [pod for pod in situation.snapshot.pods_of(job) if pod.created >= job.started]
    stones = [
        stone
        for stone in situation.snapshot.tombstones
        if stone.job_uid == job.uid and stone.phase != "Succeeded" and stone.created >= job.started
    ]
    if any(pod.phase == "Succeeded" for pod in pods):
        return ""  # the world is done and its pods are leaving one by one
    for pod in pods:
        if pod.is_lost:
            return f"pod {pod.name} on node {pod.node or '-'}: {pod.failure}"
    if stones:
        return f"pod {stones[0].name}: gone"
    # Lost while the operator was away: the Job controller counts what nobody else remembers.
    return "a pod" if job.failed else ""


def _replace(situation: Situation, job: JobView, lost: str) -> Outcome:
    earlier = situation.memory.replacements.get(job.name, Replacements())
    wait_ms = earlier.next_at_ms() - situation.now_ms
    if wait_ms > 0:
        return Outcome(requeue_after_s=wait_ms / 1000)
    what = "The coordinator" if job.is_coordinator else f"Slice {job.slice_index}"
    message = f"{what} has lost {lost}. Its pods are made anew; training resumes when they are in."
    return Outcome(
        actions=(Delete(job.ref, f"it has lost {lost}"),),
        memory=situation.memory.replaced(job.name, situation.now_ms),
        notes=(Note(reasons.SLICE_RESTARTED, message, "Warning"),),
    )


def _both(first: Outcome, second: Outcome) -> Outcome:
    delays = [item.requeue_after_s for item in (first, second) if item.requeue_after_s is not None]
    return Outcome(
        actions=(*first.actions, *second.actions),
        memory=second.memory or first.memory,
        notes=(*first.notes, *second.notes),
        requeue_after_s=min(delays, default=None),
    )
