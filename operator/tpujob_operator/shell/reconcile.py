"""One pass over one job: snapshot, decision, execution; and the workers that make passes."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping

from tpujob_operator.api.models import InvalidJobError, TPUTrainingJob, parse_job
from tpujob_operator.core.decide import decide
from tpujob_operator.core.incidents import Incidents
from tpujob_operator.core.manifests.options import ManifestOptions
from tpujob_operator.core.nodes import Pulse
from tpujob_operator.core.plan import Delete, Patch, Plan
from tpujob_operator.core.policies import dead_nodes, unmade
from tpujob_operator.core.policies.objects import REPAIR_INTERVAL_MS
from tpujob_operator.core.quota import Wait
from tpujob_operator.core.snapshot import (
    Cluster,
    JobKey,
    Snapshot,
)
from tpujob_operator.core.views import JobSetView, PodView
from tpujob_operator.shell.cache import Cache, Object
from tpujob_operator.shell.client import ApiError
from tpujob_operator.shell.clock import Clock, Moment
from tpujob_operator.shell.executor import Executor, Result
from tpujob_operator.shell.jobevents import JobEvents
from tpujob_operator.shell.jobsetkind import JobSetKind
from tpujob_operator.shell.jobstate import REFUSAL_KEPT_MS, JobState, Refusal, ledger_of
from tpujob_operator.shell.metrics import OperatorMetrics
from tpujob_operator.shell.nodecache import NodeCache
from tpujob_operator.shell.progress import Progress
from tpujob_operator.shell.pulses import Pulses
from tpujob_operator.shell.queue import KeyedQueue, QueueClosedError
from tpujob_operator.shell.retries import backoff_s
from tpujob_operator.shell.servedschema import ServedSchema
from tpujob_operator.shell.statuswriter import Outcome, StatusWrite

_log = logging.getLogger(__name__)
_FIRST_RETRY_S = 0.2
_LONGEST_RETRY_S = 60.0
_LONGEST_OUTAGE_RETRY_S = 5.0
_TELL_AGAIN_S = 2.0
_GATHER_S = 0.2
#: Failures of the API server in a row after which the job's status tells of them.
_PATIENCE = 4
#: Passes in a row that end with a defect of the operator, after which the status tells of it.
_FAILURES_TO_REPORT = 3
#: Beyond 100 jobs, numbers that change with every step are written ever more seldom.
_STATUS_INTERVAL_MS = 2_000
_STATUS_INTERVAL_PER_JOB_MS = 20


class Reconciler:
    """Brings every job that is put into the queue one step closer to what it should be."""

    def __init__(
        self,
        *,
        cache: Cache,
        queue: KeyedQueue[JobKey],
        states: dict[JobKey, JobState],
        executor: Executor,
        jobset_kind: JobSetKind,
        nodes: NodeCache,
        pulses: Pulses,
        job_events: JobEvents,
        node_loss_ms: int,
        options: ManifestOptions,
        metrics: OperatorMetrics,
        progress: Progress,
        quota: Callable[[JobSetView], Awaitable[Wait]],
        served: ServedSchema,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._cache = cache
        self._queue = queue
        self._executor = executor
        self._jobset_kind = jobset_kind
        self._nodes = nodes
        self._touched: set[str] = set()
        self._pulses = pulses
        self._job_events = job_events
        self._node_loss_ms = node_loss_ms
        self._options = options
        self._metrics = metrics
        self._progress = progress
        self._quota = quota
        self._failing: dict[JobKey, int] = {}  # passes in a row that have ended with a defect
        self._served = served
        self.states = states
        self.watchers: list[Callable[[JobKey, Snapshot | None, Plan | None], None]] = []

    async def work(self) -> None:
        """Make passes one at a time until the queue is closed; run several of these at once."""
        while True:
            try:
                key = await self._queue.get()
            except QueueClosedError:
                return
            try:
                with self._progress.work():
                    await self._pass(key)
            finally:
                self._queue.done(key)

    async def _pass(self, key: JobKey) -> None:
        started = time.monotonic()
        outcome = "error"
        try:
            outcome = await self.reconcile(key)
            self._failing.pop(key, None)
        except ApiError as error:
            _log.warning("reconciling %s: %s", key, error.message)
            self._retry(key, self.states.get(key), error)
        except Exception as error:  # noqa: BLE001 - logged with its trace just below
            # A defect that shows with one job must not stop the others.
            _log.exception("reconciling %s failed", key)
            self._retry(key, self.states.get(key))
            await self._report_failure(key, error)
        finally:
            self._metrics.reconciled(outcome, time.monotonic() - started)

    async def _report_failure(self, key: JobKey, error: Exception) -> None:
        """Let the job say what only the log would, once it is more than a moment's trouble."""
        self._failing[key] = self._failing.get(key, 0) + 1
        obj = self._cache.job(key)
        if obj is None or self._failing[key] < _FAILURES_TO_REPORT:
            return
        try:
            name = type(error).__name__
            await self._executor.statuses.report_failure(obj, name, self._clock.now().wall_ms)
        except ApiError as refusal:
            _log.warning("%s: its failure cannot be reported: %s", key, refusal.message)

    async def _current(self, key: JobKey) -> Object | None:
        """The job; read from the API server if a write of ours may have changed it unseen."""
        state = self.states.get(key)
        if state is not None and state.is_in_doubt:
            await self._executor.statuses.read(key)
            state.is_in_doubt = False
        return self._cache.job(key)

    async def reconcile(self, key: JobKey) -> str:
        """One pass; the result is a word for metrics."""
        obj = await self._current(key)
        if obj is None:
            self._forget(key)
            await self._clear_remains(key)
            return "gone"
        state = self._state(key, obj)
        async with state.deciding:
            return await self._decide(key, obj, state)

    async def _decide(self, key: JobKey, obj: Object, state: JobState) -> str:
        at = self._clock.now()
        state.looked_ms = at.steady_ms
        has_jobset = await self._jobset_kind.is_served()
        pods = _all_on_wall(self._cache.pods(key), at)
        state.see(pods)
        if state.refusals:  # seldom, and a job may have thousands of pods
            state.see_children((*self._cache.jobsets(key), *self._cache.jobs(key), *pods))
        suspicious = self._suspicious(pods, state.history.incidents)
        pulses = await self._pulses_for(pods, suspicious, at)
        snapshot = self._snapshot(key, obj, state, pods, pulses, at=at, has_jobset=has_jobset)
        snapshot = await self._with_words(snapshot, at.wall_ms)
        plan = decide(snapshot, at.wall_ms)
        result = await self._executor.execute(snapshot, plan, at.wall_ms)
        if result.is_committed:
            state.committed(plan.history, plan.memory)
        elif result.status.outcome is Outcome.REFUSED:
            state.memory = state.memory.despite_refusal(plan.memory)
        self._settle(key, state, plan, result, at.steady_ms)
        for watcher in self.watchers:
            watcher(key, snapshot, plan)
        if result.error is not None:
            _log.warning("%s: %s", key, result.error.message)
            return "refused" if result.is_refused else "retry"
        return "unchanged" if plan.is_empty else "changed"

    async def _with_words(self, snapshot: Snapshot, at_ms: int) -> Snapshot:
        """The snapshot with what Kueue and the Job controller say, where the job waits for them."""
        jobset = snapshot.jobset
        if snapshot.job and snapshot.job.spec.queue and jobset and jobset.is_suspended:
            wait = await self._quota(jobset)
            snapshot = dataclasses.replace(snapshot, quota=wait)
        jobs = (*snapshot.current_jobs, *((snapshot.preflight,) if snapshot.preflight else ()))
        podless = unmade.podless_jobs(jobs, snapshot.pods, at_ms)
        if podless:
            refusals = await self._job_events.words_about(podless)
            snapshot = dataclasses.replace(snapshot, unmade=refusals)
        return snapshot

    def _settle(self, key: JobKey, state: JobState, plan: Plan, result: Result, at_ms: int) -> None:
        before = state.words_of_refusals(at_ms)
        _note_refusals(state, plan, result, at_ms)
        _note_status(state, plan, result.status, at_ms)
        if result.is_support_applied:
            state.applied_ms = at_ms
        state.told = result.told or state.told
        if result.is_untold:
            self._queue.add_after(key, _TELL_AGAIN_S)
        if result.is_jobset_missing:
            self._jobset_kind.suspect()
            self._queue.add(key)
        if result.error is not None or result.is_outdated:
            self._retry(key, state, result.error)
            return
        state.failures = 0
        if state.words_of_refusals(at_ms) != before:
            self._queue.add(key)
        if state.refusals:
            self._queue.add_after(key, REFUSAL_KEPT_MS / 1000)
        if plan.requeue_after_s is not None:
            self._queue.add_after(key, plan.requeue_after_s)

    def _retry(self, key: JobKey, state: JobState | None, error: ApiError | None = None) -> None:
        failures = state.failures if state else 3
        if state is not None:
            state.failures += 1
        # The client itself spares a server in trouble; jobs need not wait long once it is back.
        is_outage = error is not None and error.is_outage
        longest_s = _LONGEST_OUTAGE_RETRY_S if is_outage else _LONGEST_RETRY_S
        delay_s = backoff_s(failures, _FIRST_RETRY_S, longest_s)
        self._queue.add_after(key, max(delay_s, error.retry_after_s if error else 0))

    def _state(self, key: JobKey, obj: Object) -> JobState:
        state, uid = self.states.get(key), obj["metadata"]["uid"]
        if state is None or state.uid != uid:
            state = self.states[key] = JobState.of(obj)
            # An attempt that runs has its Secret and Service: spread the looks after a restart.
            state.applied_ms = (
                self._clock.steady_ms() - zlib.crc32(uid.encode()) % REPAIR_INTERVAL_MS
            )
        elif state.ledger != ledger_of(obj):
            _log.info("%s: its status is not what this operator knows; it is read again", key)
            state = self.states[key] = state.reloaded(obj)
        state.ledger = ledger_of(obj)
        return state

    def _forget(self, key: JobKey) -> None:
        if self.states.pop(key, None) is not None:
            for watcher in self.watchers:
                watcher(key, None, None)
        self._queue.forget(key)
        self._failing.pop(key, None)

    async def _clear_remains(self, key: JobKey) -> None:
        """Pods of a job that is gone stay on dead nodes like those of any other."""
        at = self._clock.now()
        pods = _all_on_wall(self._cache.pods(key), at)
        suspicious = self._suspicious(pods, Incidents())
        pulses = await self._pulses_for(pods, suspicious, at)
        dead = dead_nodes.deletions_of_dead(pods, pulses, self._node_loss_ms, at.wall_ms)
        refusals = [await self._refusal(key, deletion) for deletion in dead]
        delay_s = dead_nodes.next_look_s(pods, suspicious, at.wall_ms)
        if delay_s is not None:
            self._queue.add_after(key, delay_s)
        for refusal in filter(None, refusals):
            raise refusal

    async def _refusal(self, key: JobKey, deletion: Delete) -> ApiError | None:
        """Delete one object; why that was refused, if it was: the next one has its turn."""
        try:
            await self._executor.act(key, deletion)
        except ApiError as error:
            return error
        return None

    def _suspicious(self, pods: Iterable[PodView], incidents: Incidents) -> frozenset[str]:
        nodes = self._nodes.find({pod.node for pod in pods})
        return dead_nodes.suspicious(nodes, incidents)

    async def _pulses_for(
        self, pods: Iterable[PodView], suspicious: frozenset[str], at: Moment
    ) -> Mapping[str, Pulse]:
        in_doubt = dead_nodes.nodes_in_doubt(pods, suspicious, at.wall_ms)
        pulses = await self._pulses.take(in_doubt, at.steady_ms)
        return {name: _on_wall(pulse, at) for name, pulse in pulses.items()}

    def touch_node(self, name: str) -> None:
        """Something has changed about a node: look soon at the jobs that have to do with it."""
        if not self._touched:  # nodes often change by the hundred
            asyncio.get_running_loop().call_later(_GATHER_S, self._look_at_touched)
        self._touched.add(name)

    def _look_at_touched(self) -> None:
        touched, self._touched = self._touched, set()
        for key, state in self.states.items():
            if touched & nodes_of(state, self._cache.pods(key)):
                self._queue.add(key)

    def _snapshot(
        self,
        key: JobKey,
        obj: Object,
        state: JobState,
        pods: tuple[PodView, ...],
        pulses: Mapping[str, Pulse],
        *,
        at: Moment,
        has_jobset: bool,
    ) -> Snapshot:
        job, error = _parse(obj)
        return Snapshot(
            obj=obj,
            job=job,
            spec_error=error,
            history=state.history,
            memory=state.memory,
            options=self._options,
            cluster=Cluster(
                has_jobset=has_jobset,
                status_interval_ms=status_interval_ms(len(self.states)),
                node_loss_ms=self._node_loss_ms,
                shapes=self._nodes.shapes,
                status_schema=self._served.schema,
            ),
            jobsets=self._cache.jobsets(key),
            jobs=self._cache.jobs(key),
            pods=pods,
            tombstones=_all_on_wall(self._cache.tombstones(key), at),
            unread=state.unread,
            pulses=pulses,
            nodes=self._nodes.find(nodes_of(state, pods)),
            told=state.told,
            refusals=state.words_of_refusals(at.steady_ms),
            silent_since_ms=at.on_wall(state.silent_since_ms),
            silent_why=state.silent_why,
            is_unauthorized=state.is_unauthorized,
            status_written_ms=at.on_wall(state.status_written_ms),
            applied_ms=at.on_wall(state.applied_ms),
        )


def status_interval_ms(jobs: int) -> int:
    """How often numbers that change with every step are written to the status of each job."""
    return max(_STATUS_INTERVAL_MS, _STATUS_INTERVAL_PER_JOB_MS * jobs)


def _on_wall(pulse: Pulse, at: Moment) -> Pulse:
    """A pulse whose silence is counted by the clock of decisions."""
    return dataclasses.replace(pulse, silent_since_ms=at.on_wall(pulse.silent_since_ms))


def _all_on_wall(pods: Iterable[PodView], at: Moment) -> tuple[PodView, ...]:
    """Pods whose deletions are dated by the clock of decisions."""
    return tuple(
        dataclasses.replace(pod, deletion_seen_ms=at.on_wall(pod.deletion_seen_ms))
        if pod.deletion_seen_ms
        else pod
        for pod in pods
    )


def nodes_of(state: JobState, pods: Iterable[PodView]) -> set[str]:
    """Nodes that matter to a job: those of its pods, and those it has lost hosts on."""
    lost = {incident.node for incident in state.history.incidents.newest}
    dead = {suspect.name for suspect in state.memory.dead_nodes}
    return (lost | dead | {pod.node for pod in pods}) - {""}


def _note_refusals(state: JobState, plan: Plan, result: Result, at_ms: int) -> None:
    wanted = [item.ref for item in plan.actions if isinstance(item, Patch)]
    for subject, known in list(state.refusals.items()):
        if isinstance(known.action, Patch) and known.action.ref not in wanted:
            del state.refusals[subject]  # it was changed after all, or need not be any more
    for item in result.actions:
        if item.error is None:
            state.refusals.pop(item.subject, None)
            continue
        is_lasting = state.failures >= _PATIENCE or (item.failure and item.failure.is_refused)
        if item.failure is not None and is_lasting and not item.is_jobset_unknown:
            state.refusals[item.subject] = Refusal(item.words, at_ms, item.action)


def _note_status(state: JobState, plan: Plan, written: StatusWrite, at_ms: int) -> None:
    state.is_in_doubt = written.outcome is Outcome.UNKNOWN
    if written.obj is not None:
        state.ledger = ledger_of(written.obj)
    if written.outcome is Outcome.WRITTEN:
        state.status_written_ms = at_ms
        state.persisted, state.unread = plan.history.cursor, ""


def _parse(obj: Object) -> tuple[TPUTrainingJob | None, str]:
    try:
        return parse_job(obj), ""
    except InvalidJobError as error:
        return None, "; ".join(str(error).splitlines())
