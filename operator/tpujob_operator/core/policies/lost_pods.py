"""Lost pods: the Job of a slice that has lost a pod is deleted, and JobSet makes it anew at once.

The Job controller alone would wait 10 s, then 20 s, 40 s … before it replaces a
pod, and a TPU slice that has lost a host is broken as a whole anyway.
"""

import dataclasses

from tpujob_agent.protocol import Cause
from tpujob_operator.api import reasons
from tpujob_operator.core.incidents import Incident, Rung
from tpujob_operator.core.memory import CALM_MS, LostPod, Replacements, remaining_ms
from tpujob_operator.core.observations import Fact, FactKind
from tpujob_operator.core.plan import Delete, Note
from tpujob_operator.core.situation import NOTHING, Outcome, Situation
from tpujob_operator.core.views import JobView, PodView

#: The coordinator's clock and ours may differ by so much.
_SKEW_MS = 5_000
#: Within this time of a deletion, in whole seconds, a suspension that is its cause is seen.
_EVICTION_SHOWS_MS = 3_000


def replace_broken_jobs(situation: Situation) -> Outcome:
    """Delete each Job that has lost a pod, once, unless pods are meant to go."""
    jobset = situation.jobset
    is_calm = (
        jobset is None
        or not jobset.has_agents
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


def blame_lost_pods(situation: Situation) -> Outcome:
    """Blame the pod that broke its slice, not one that had to go with it.

    The coordinator blames the host that says goodbye first, and a kubelet that is busy may
    be slower to end the pod that was lost than another one is to end those we delete.
    """
    facts, waiting = [], []
    for lost in situation.memory.lost_pods:
        incident = next((one for one in situation.history.incidents.newest if _of(one, lost)), None)
        if incident is None:
            waiting.append(lost)
        elif incident.pod != lost.pod:
            facts.append(_blamed(situation, incident, lost))
    if len(waiting) == len(situation.memory.lost_pods):
        return NOTHING
    memory = dataclasses.replace(situation.memory, lost_pods=tuple(waiting))
    return Outcome(facts=tuple(facts), memory=memory)


def _of(incident: Incident, lost: LostPod) -> bool:
    since_ms = incident.at_ms - lost.at_ms
    is_gone = incident.rung is Rung.POD and incident.cause is not Cause.STRAGGLER
    is_near = -_SKEW_MS <= since_ms <= CALM_MS
    # The job had recovered from it when the pod was lost: one loss may follow another at once.
    is_another = 0 <= incident.recovered_after_ms <= -since_ms
    return is_gone and incident.slice == lost.slice and is_near and not is_another


def _blamed(situation: Situation, incident: Incident, lost: LostPod) -> Fact:
    data = {
        "atMs": incident.at_ms,
        "pod": incident.pod,
        "cause": incident.cause.value,
        "message": f"pod {lost.pod} of its slice was lost first",
        "culprit": {"worker": lost.host, "node": lost.node, "pod": lost.pod},
    }
    return Fact(situation.now_ms, FactKind.LOSS_EXPLAINED, data)


def _loss(situation: Situation, job: JobView) -> str:
    """What was lost of a Job, in words; empty: nothing."""
    if job.is_deleting or job.is_suspended or job.is_over or not job.started:
        return ""
    pods = situation.snapshot.pods_since_start(job)
    if any(pod.phase == "Succeeded" for pod in pods):
        return ""  # the world is done and its pods are leaving one by one
    if len({pod.place for pod in pods if not pod.is_lost}) >= job.hosts:
        return ""  # while we held back or were away, the Job controller has replaced what was lost
    for pod in pods:
        if pod.is_lost:
            return f"pod {pod.name} on node {pod.node or '-'}: {pod.failure}"
    gone = _gone(situation, job)
    if gone:
        return f"pod {gone[0].name}: gone"
    # Lost while the operator was away: the Job controller counts what nobody else remembers.
    return "a pod" if job.failed else ""


def _gone(situation: Situation, job: JobView) -> list[PodView]:
    gone = situation.snapshot.gone_since_start(job)
    return [stone for stone in gone if stone.phase != "Succeeded"]


def _may_be_eviction_ms(situation: Situation, job: JobView) -> int:
    """For how long Kueue may yet turn out to have deleted what a Job has lost; 0: it has not.

    Kueue evicts by a suspension. The watch of pods may be ahead of those of JobSets and Jobs.
    """
    if not situation.job.spec.queue:
        return 0
    lost = [pod for pod in situation.snapshot.pods_since_start(job) if pod.is_lost]
    if any(pod.disruption or not pod.is_deleting for pod in lost):
        return 0
    seen = [pod.deletion_seen_ms for pod in (*lost, *_gone(situation, job))]
    shown_ms = max(seen, default=0) + _EVICTION_SHOWS_MS
    return remaining_ms(shown_ms, situation.now_ms, _EVICTION_SHOWS_MS)


def _replace(situation: Situation, job: JobView, lost: str) -> Outcome:
    earlier = situation.memory.replacements.get(job.name, Replacements())
    held_ms = earlier.wait_ms(situation.now_ms)
    wait_ms = max(held_ms, _may_be_eviction_ms(situation, job))
    if wait_ms > 0:
        return Outcome(requeue_after_s=wait_ms / 1000)
    what = "The coordinator" if job.is_coordinator else f"Slice {job.slice_index}"
    message = f"{what} has lost {lost}. Its pods are made anew; training resumes when they are in."
    memory = situation.memory.replaced(job.name, situation.now_ms)
    gone = [pod for pod in situation.snapshot.pods_of(job) if pod.is_lost and pod.is_worker]
    if len(gone) == 1:  # of several nobody knows which was the first
        [pod] = gone
        memory = memory.lost(LostPod(situation.now_ms, *pod.place, pod.node, pod.name))
    note = Note(reasons.SLICE_RESTARTED, message, "Warning")
    deletion = Delete(job.ref, f"it has lost {lost}", needs_status=False, on_success=(note,))
    return Outcome(actions=(deletion,), memory=memory)


def _both(first: Outcome, second: Outcome) -> Outcome:
    delays = [item.requeue_after_s for item in (first, second) if item.requeue_after_s is not None]
    return Outcome(
        actions=(*first.actions, *second.actions),
        memory=second.memory or first.memory,
        requeue_after_s=min(delays, default=None),
    )
