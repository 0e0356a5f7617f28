"""Attempts without agents: their pods are all that tells how they go, and one end ends them all.

A restart is another attempt. Its pods are told apart from those that had to go with them: the
Job controller ends the other pods of a slice that has lost one, JobSet those of other slices.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

from tpujob_agent.protocol import BUDGET_OF_CAUSE, Budget, Cause, ProcessState, Report
from tpujob_coordinator.budgets import backoff_ms
from tpujob_coordinator.membership import Place
from tpujob_coordinator.verdicts import End, Rank, culprit, judge
from tpujob_operator.core.incidents import Incident, Incidents
from tpujob_operator.core.memory import CALM_MS
from tpujob_operator.core.observations import Fact, FactKind
from tpujob_operator.core.plan import Delete
from tpujob_operator.core.policies.attempts import backoff
from tpujob_operator.core.policies.completion import over_budget
from tpujob_operator.core.situation import NOTHING, Outcome, Situation, fact
from tpujob_operator.core.views import Exit, JobSetView, JobView, PodView

#: Who exits with an error of its own may have lost a peer that another kubelet tells of later.
_GATHER_MS = 2_000
#: What a pod's end was is waited for longer: its watch may be behind that of its JobSet.
_UNSEEN_MS = 5_000
#: Why Kubernetes deletes pods of a node that is gone.
_NODE_GONE = ("DeletionByTaintManager", "DeletionByPodGC")
_SOMEWHERE = Place(-1, -1)


def note_running_pods(situation: Situation) -> Outcome:
    """Tell the history when the programs of all hosts run."""
    ledger = situation.history.ledger
    if ledger.generation or ledger.queued or _attempt(situation) is None:
        return NOTHING
    if _at_work(situation) < situation.hosts:
        return NOTHING
    running = fact(situation, FactKind.PODS_RUNNING, generation=1, hosts=situation.hosts)
    return Outcome(facts=(running,))


def restart_lost_world(situation: Situation) -> Outcome:
    """Replace an attempt of which a pod has ended badly, within the budget of the cause."""
    memory, jobset = situation.memory, _attempt(situation)
    ends = _ends(situation, jobset) if jobset else []
    if jobset is None or not ends:
        is_known = memory.ends_since_ms > 0
        return Outcome(memory=dataclasses.replace(memory, ends_since_ms=0)) if is_known else NOTHING
    # A pod that is taken away is soon gone, and what it tells with it.
    is_sure = any(end.rank is Rank.CERTAIN and end.pod for end in ends)
    is_sure = is_sure and not _may_be_kueue(situation)
    since_ms = memory.ends_since_ms or situation.now_ms
    gather_ms = _GATHER_MS if any(end.pod for end in ends) else _UNSEEN_MS
    wait_ms = since_ms + gather_ms - situation.now_ms
    if wait_ms > 0 and not is_sure:
        memory = dataclasses.replace(memory, ends_since_ms=since_ms)
        return Outcome(memory=memory, requeue_after_s=wait_ms / 1000)
    return _restart(situation, jobset, culprit(ends))


def _attempt(situation: Situation) -> JobSetView | None:
    """The JobSet that runs pods without agents; nothing while it is not meant to."""
    jobset = situation.jobset
    if jobset is None or jobset.has_agents or situation.job.spec.suspend:
        return None
    is_calm = jobset.is_deleting or jobset.is_suspended or jobset.is_completed
    return None if is_calm else jobset


def _at_work(situation: Situation) -> int:
    """Hosts whose program runs, or is done."""
    return sum(_hosts_at_work(situation, job) for job in situation.snapshot.current_jobs)


def _hosts_at_work(situation: Situation, job: JobView) -> int:
    if job.is_succeeded:
        return job.hosts
    pods = _pods(situation, job)
    return len({pod.place for pod in pods if pod.phase == "Succeeded" or _runs(pod)})


def _runs(pod: PodView) -> bool:
    return pod.phase == "Running" and not pod.is_deleting


def _pods(situation: Situation, job: JobView) -> tuple[PodView, ...]:
    """Pods that are meant to run: a Job outlives its suspension, its pods do not."""
    return () if job.is_suspended else situation.snapshot.pods_since_start(job)


def _ends(situation: Situation, jobset: JobSetView) -> list[End]:
    """What has ended badly, but for pods that were taken away because of that.

    A deletion shows at once, the ends that follow from it do not: what is taken away after an
    end is known follows from that. Only if both are seen together their times have to tell. A
    deletion may be all that is ever known, by then of a pod that is gone.
    """
    pods = _seen(situation)
    own = [_own_end(situation, pod) for pod in pods if not pod.is_taken]
    found = [end for end in own if end is not None]
    if not situation.memory.ends_since_ms or not found:
        certain_ms = _first_certain_ms(pods)
        first_ms = min((end.at_ms for end in found), default=situation.now_ms)
        taken = _taken_first(situation, pods)
        found += [end for end in taken if end.at_ms <= first_ms and end.at_ms < certain_ms]
    return found or _unseen(situation, jobset)


def _seen(situation: Situation) -> list[PodView]:
    """Pods that are meant to run, and how those that are gone were last seen."""
    snapshot = situation.snapshot
    return [
        pod
        for job in snapshot.current_jobs
        if not (job.is_suspended or job.is_succeeded)
        for pod in (*snapshot.pods_since_start(job), *snapshot.gone_since_start(job))
    ]


def _taken_first(situation: Situation, pods: list[PodView]) -> list[End]:
    """Ends of pods that were taken away, but for those that JobSet took after a Job had failed."""
    failed = {job.uid for job in situation.snapshot.current_jobs if job.failure}
    is_known = any(pod.owner_uid in failed for pod in pods)
    first = [pod for pod in pods if pod.owner_uid in failed] if is_known else pods
    ends = [_taken(situation, pod) for pod in first if pod.is_taken]
    return [end for end in ends if end is not None]


def _first_certain_ms(pods: list[PodView]) -> float:
    """When the first pod failed that has not failed because of its peers; 0: nobody knows when.

    Times are whole seconds: what was taken away within the same second may have followed.
    """
    own = [pod for pod in pods if not pod.is_taken]
    exits = [pod.bad_exit for pod in own if pod.bad_exit]
    times = [exit_.at_ms for exit_ in exits if judge(_report(exit_))[1] is Rank.CERTAIN]
    refused = [0.0 for pod in own if pod.phase == "Failed" and not pod.bad_exit]
    return min((*times, *refused), default=math.inf)


def _unseen(situation: Situation, jobset: JobSetView) -> list[End]:
    """The end of pods that are gone and were not seen again.

    A pod that has ended by itself stays with its Job, so one that is gone was taken away. Before
    all pods have run, only what the Job controller counts proves that there was one.
    """
    words = jobset.failure
    has_run = situation.history.ledger.generation > 0
    if words is None and has_run and _at_work(situation) < situation.history.hosts:
        words = "a pod is gone"
    if words is None:
        return []
    jobs = situation.snapshot.current_jobs
    failed = [job for job in jobs if job.failure]
    place = _SOMEWHERE
    if len(failed) == 1 and failed[0].failed:
        words = f"a pod of {failed[0].name} is gone: {words}"
        place = Place(failed[0].slice_index, _missing_host(situation, failed[0]))
    cause = Cause.PREEMPTION if has_run or any(job.failed for job in jobs) else Cause.NODE
    return [End(place, situation.now_ms, cause, Rank.CERTAIN, words)]


def _missing_host(situation: Situation, job: JobView) -> int:
    """The host of a Job that has no pod; -1: several have none."""
    there = {pod.place[1] for pod in situation.snapshot.pods_of(job)}
    missing = set(range(job.hosts)) - there
    return missing.pop() if len(missing) == 1 else _SOMEWHERE.host


def _may_be_kueue(situation: Situation) -> bool:
    """Whether pods may be gone because quota is: the JobSet's watch may lag behind that of pods."""
    if not situation.job.spec.queue:
        return False
    pods = _seen(situation)
    return not any(pod.disruption or (pod.bad_exit and not pod.is_taken) for pod in pods)


def _own_end(situation: Situation, pod: PodView) -> End | None:
    exited = pod.bad_exit
    if exited is not None:
        cause, rank, message = judge(_report(exited))
        at_ms = exited.at_ms or situation.now_ms
        code = exited.code
        return End(Place(*pod.place), at_ms, cause, rank, message, pod.node, pod.name, code)
    if pod.phase != "Failed":
        return None
    words = f"pod {pod.name}: {pod.failure}"
    at_ms = situation.now_ms
    return End(Place(*pod.place), at_ms, Cause.NODE, Rank.CERTAIN, words, pod.node, pod.name)


def _report(exited: Exit) -> Report:
    """What an agent would have reported."""
    return Report(
        sent_at_ms=exited.at_ms,
        state=ProcessState.EXITED,
        generation=0,
        exit_code=exited.code,
        tail=exited.message,
        out_of_memory="OOMKilled" if exited.is_out_of_memory else "",
    )


def _taken(situation: Situation, pod: PodView) -> End | None:
    """The end of a pod that had to go, as the cause that an agent's SIGTERM would have."""
    if pod.phase == "Succeeded":
        return None
    at_ms = pod.deletion_asked_ms or situation.now_ms
    node = situation.snapshot.nodes.get(pod.node)
    cause = Cause.NODE if pod.disruption in _NODE_GONE else Cause.PREEMPTION
    if node is not None and node.notice and node.notice.covers(at_ms):
        cause = node.notice.cause
    words = f"pod {pod.name}: {pod.failure}"
    return End(Place(*pod.place), at_ms, cause, Rank.CERTAIN, words, pod.node, pod.name)


def _restart(situation: Situation, jobset: JobSetView, end: End) -> Outcome:
    failure = _failure(situation, end)
    incidents = situation.history.incidents.apply(failure)
    spent = over_budget(situation.after(Outcome(facts=(failure,))))
    if spent.is_final:
        return dataclasses.replace(spent, facts=(failure, *spent.facts))
    until_ms = situation.now_ms + backoff_ms(*_in_a_row(incidents, end.cause))
    committed_step = situation.history.progress.committed_step
    memory = situation.memory.of_next_attempt(committed_step)
    return Outcome(
        actions=(Delete(jobset.ref, f"it has lost {end.pod or 'a pod'}: {end.message}"),),
        facts=(failure, backoff(situation, until_ms, end.cause)),
        memory=dataclasses.replace(memory, next_attempt_ms=until_ms),
        attempt=situation.attempt + 1,
    )


def _failure(situation: Situation, end: End) -> Fact:
    ledger = situation.history.ledger
    # Nothing ends the open interval of such a world: it began when all pods ran.
    ran_ms = end.at_ms - ledger.cursor_ms if ledger.is_training else 0
    data = {
        "cause": end.cause.value,
        "onsetAtMs": end.at_ms,
        "slice": end.place.slice,
        "host": end.place.host,
        "node": end.node,
        "pod": end.pod,
        "step": situation.history.progress.step,
        "message": end.message,
        "isCalm": ran_ms >= CALM_MS,
    } | ({} if end.exit_code is None else {"exitCode": end.exit_code})
    return Fact(situation.now_ms, FactKind.ATTEMPT_FAILED, data)


def _in_a_row(incidents: Incidents, cause: Cause) -> tuple[Budget, int]:
    """The budget of a cause, and how often it was charged in a row without progress."""
    budget = BUDGET_OF_CAUSE[cause]

    def counts(incident: Incident) -> bool:
        return incident.is_uncommitted and BUDGET_OF_CAUSE.get(incident.cause) is budget

    return budget, len([*itertools.takewhile(counts, reversed(incidents.newest))])
