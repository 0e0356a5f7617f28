"""Jobs and pods that are never made: what holds them up reaches the job's conditions.

A service account or priority class that does not exist, a quota that is spent, a policy that
forbids the pod: the API server refuses each pod to the Job controller, which writes an event about
the Job and tries again, and nothing else shows it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from tpujob_operator.api import reasons
from tpujob_operator.api.base import parse_rfc3339
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.core.situation import NOTHING, Outcome, Situation, Verdict
from tpujob_operator.core.views import JobView, PodView

#: A Job's first pod usually takes less than a second.
_PATIENCE_MS = 5_000
_LOOK_S = 10.0
#: JobSet makes an attempt's Jobs within a second or two.
_JOBSET_PATIENCE_MS = 60_000
_SILENT = (
    "JobSet {name} has had no Jobs for a minute: the JobSet controller does not act on it. See "
    "whether its pods run and what they log: kubectl get pods -n jobset-system"
)
#: The names of pods are made up anew each time.
_NOISE = re.compile(r"^Error creating: |pods \"[^\"]*\" is forbidden: ")
_ADVICE = (
    ("serviceaccount", "Create the service account, or correct its name in the job's spec"),
    ("PriorityClass", "Create the priority class, or correct spec.priorityClassName"),
    ("exceeded quota", "Free some of the namespace's quota, or have it raised"),
    ("PodSecurity", "Make the template fit the namespace's Pod Security Standard"),
)


def podless_jobs(
    jobs: Iterable[JobView], pods: Iterable[PodView], now_ms: int
) -> tuple[JobView, ...]:
    """Jobs that should have had a pod for some time, and have none."""
    have = {pod.owner_uid for pod in pods}
    return tuple(job for job in jobs if job.uid not in have and _waits_ms(job, now_ms) <= 0)


def report_unmade_pods(situation: Situation) -> Outcome:
    """The job is stalled while Kubernetes refuses its pods."""
    snapshot, now_ms = situation.snapshot, situation.now_ms
    have = {pod.owner_uid for pod in snapshot.pods}
    without = [job for job in snapshot.current_jobs if job.uid not in have and _should_run(job)]
    if not without:
        return NOTHING
    wait_s = min(max(_waits_ms(job, now_ms) / 1000, 0.0) for job in without) or _LOOK_S
    refused = [job for job in without if job.name in snapshot.unmade]
    if not refused or ConditionType.STALLED in situation.verdicts:
        return Outcome(requeue_after_s=wait_s)
    words = _NOISE.sub("", snapshot.unmade[refused[0].name])
    advice = next((text for sign, text in _ADVICE if sign in words), "Correct the cause")
    message = (
        f"Kubernetes makes no pods for {len(refused)} of the attempt's Jobs: {words}. {advice}; "
        "the Job controller tries again by itself, at growing intervals."
    )
    verdict = Verdict(True, reasons.PODS_REFUSED, message)
    return Outcome(verdicts={ConditionType.STALLED: verdict}, requeue_after_s=wait_s)


def report_silent_jobset(situation: Situation) -> Outcome:
    """The job is stalled while nobody makes the Jobs of its JobSet."""
    memory, jobset = situation.memory, situation.jobset
    should_have = jobset is not None and not (
        jobset.is_suspended or jobset.is_deleting or jobset.is_completed or jobset.failure
    )
    if jobset is None or not should_have or situation.snapshot.current_jobs:
        since_ms = 0
    else:
        since_ms = memory.jobless_since_ms or situation.now_ms
    if since_ms != memory.jobless_since_ms:
        memory = dataclasses.replace(memory, jobless_since_ms=since_ms)
    rest_ms = since_ms + _JOBSET_PATIENCE_MS - situation.now_ms
    if jobset is None or not since_ms:
        return Outcome(memory=memory)
    if rest_ms > 0 or ConditionType.STALLED in situation.verdicts:
        return Outcome(memory=memory, requeue_after_s=max(rest_ms / 1000, _LOOK_S))
    verdict = Verdict(True, reasons.JOBSET_SILENT, _SILENT.format(name=jobset.name))
    return Outcome(memory=memory, verdicts={ConditionType.STALLED: verdict})


def _should_run(job: JobView) -> bool:
    return bool(job.started) and not (job.is_suspended or job.is_over or job.is_deleting)


def _waits_ms(job: JobView, now_ms: int) -> int:
    """How long a Job may still be without pods; at most 0: it should have some."""
    if not _should_run(job):
        return _PATIENCE_MS
    return parse_rfc3339(job.started) + _PATIENCE_MS - now_ms
