"""A tiny cluster in memory: what Kubernetes and JobSet would make of the operator's plans."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from tests.core.checks import end_preflights
from tests.core.making import Object, has_failed, make_job, make_pod, owner_of
from tests.core.modelapi import CrashedError, Fault, ModelApi, run
from tests.specs import TWO_SLICES
from tpujob_agent.preflight import Verdict
from tpujob_operator.api.base import parse_rfc3339, rfc3339
from tpujob_operator.api.models import InvalidJobError, parse_job
from tpujob_operator.core.decide import decide
from tpujob_operator.core.history import History
from tpujob_operator.core.kinds import JOB, JOB_SET, POD, TPU_TRAINING_JOB, Kind
from tpujob_operator.core.manifests.options import ManifestOptions
from tpujob_operator.core.memory import Memory
from tpujob_operator.core.nodes import NodeView, Pulse, Shape
from tpujob_operator.core.plan import Plan
from tpujob_operator.core.projection import job_view, jobset_view, pod_view, views
from tpujob_operator.core.quota import Wait
from tpujob_operator.core.snapshot import Cluster, Snapshot, Told
from tpujob_operator.core.timeline import TimelineBatch
from tpujob_operator.core.views import PodView
from tpujob_operator.shell.executor import Executor, Result
from tpujob_operator.shell.jobstate import JobState, ledger_of
from tpujob_operator.shell.statuswriter import Outcome

START_MS = 1_790_000_000_000
OPTIONS = ManifestOptions("a key for tests only", "operator:1", "trainer:1")
#: By the number of the write in its pass, from 0.
Faults = Mapping[int, Fault]
NO_FAULTS: Faults = {}
#: Longer delays are no back-offs, but the repair of what is not watched.
LONGEST_BACKOFF_S = 300
_WRITTEN_LATER_MS = 1_000  # a Job's start: when its pods are there, in whole seconds


def job_object(name: str = "j", **spec: Any) -> Object:
    """A job of two single-host slices, as the API server would return it."""
    return {
        "apiVersion": TPU_TRAINING_JOB.api_version,
        "kind": TPU_TRAINING_JOB.kind,
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": rfc3339(START_MS),
        },
        "spec": {**TWO_SLICES, **spec},
    }


@dataclasses.dataclass
class World:
    """One job and all objects that belong to it; ``now_ms`` is moved by the test."""

    obj: Object = dataclasses.field(default_factory=job_object)
    now_ms: int = START_MS
    has_jobset: bool = True
    objects: dict[Kind, dict[str, Object]] = dataclasses.field(
        default_factory=lambda: {JOB_SET: {}, JOB: {}, POD: {}}
    )
    tombstones: list[PodView] = dataclasses.field(default_factory=list)
    deletions: dict[str, int] = dataclasses.field(default_factory=dict)  # of pods, when seen
    readings: list[TimelineBatch] = dataclasses.field(default_factory=list)
    #: Since when they are silent; 0: their Node object is deleted.
    dead_nodes: dict[str, int] = dataclasses.field(default_factory=dict)
    nodes: dict[str, NodeView] = dataclasses.field(default_factory=dict)
    shapes: frozenset[Shape] | None = None
    status_schema: Mapping[str, Any] | None = None
    told: Told = dataclasses.field(default_factory=Told)
    quota: Wait = dataclasses.field(default_factory=Wait)
    refusals: tuple[str, ...] = ()
    unmade: dict[str, str] = dataclasses.field(default_factory=dict)
    answer: Verdict | None = None  # of a preflight's pod; None: it runs on
    silent_since_ms: int = 0
    is_unauthorized: bool = False
    unread: str = ""
    history: History = dataclasses.field(default_factory=lambda: History.start(START_MS))
    memory: Memory = dataclasses.field(default_factory=Memory)
    status_written_ms: int = 0
    applied_ms: int = 0
    notes: list[str] = dataclasses.field(default_factory=list)
    ledger: Mapping[str, Any] | None = None  # in the status, as the operator knows it
    has_refused: bool = False
    status_code: int = 0  # of the answer to every status; 0: they are taken
    unstored: list[TimelineBatch] = dataclasses.field(default_factory=list)  # folded since
    support: dict[str, Object] = dataclasses.field(default_factory=dict)  # Secrets and Services
    deleted: list[str] = dataclasses.field(default_factory=list)
    _uids: Iterable[int] = dataclasses.field(default_factory=itertools.count)

    # ---- the operator

    def snapshot(self) -> Snapshot:
        """What the operator sees."""
        job, error = None, ""
        try:
            job = parse_job(self.obj)
        except InvalidJobError as problem:
            error = str(problem)
        return Snapshot(
            obj=self.obj,
            job=job,
            spec_error=error,
            history=self.history,
            memory=self.memory,
            options=OPTIONS,
            cluster=Cluster(
                has_jobset=self.has_jobset, shapes=self.shapes, status_schema=self.status_schema
            ),
            jobsets=views(jobset_view, self.objects[JOB_SET].values()),
            jobs=views(job_view, self.objects[JOB].values()),
            pods=tuple(map(self.dated, views(pod_view, self.objects[POD].values()))),
            tombstones=tuple(self.tombstones),
            unread=self.unread,
            nodes=self.nodes,
            told=self.told,
            pulses={name: Pulse(since > 0, "", since) for name, since in self.dead_nodes.items()},
            quota=self.quota,
            refusals=self.refusals,
            unmade=self.unmade,
            silent_since_ms=self.silent_since_ms,
            is_unauthorized=self.is_unauthorized,
            status_written_ms=self.status_written_ms,
            applied_ms=self.applied_ms,
        )

    def step(self, crash_after: int | None = None, faults: Faults = NO_FAULTS) -> Plan:
        """One pass of the operator; it may crash after so many of its writes, or some may fail.

        What a coordinator has told is folded before; what is not stored then is told again.
        """
        if ledger_of(self.obj) != self.ledger:
            self._reload()
        self.history = functools.reduce(History.read, self.readings, self.history)
        self.unstored += self.readings
        self.readings.clear()
        snapshot = self.snapshot()
        plan = decide(snapshot, self.now_ms)
        api = ModelApi(self, crash_after, faults)
        executor = Executor(api, api, "model", api.tell)
        try:
            result = run(executor.execute(snapshot, plan, self.now_ms))
        except CrashedError:
            self.restart_operator()
            return plan
        self._settle(plan, result)
        return plan

    def _settle(self, plan: Plan, result: Result) -> None:
        """What the operator remembers of a pass; as ``Reconciler`` does."""
        if result.is_committed:
            self.history, self.memory = plan.history, plan.memory
        elif result.status.outcome is Outcome.REFUSED:
            self.memory = self.memory.despite_refusal(plan.memory)
        if result.status.obj is not None:
            self.ledger = ledger_of(result.status.obj)
        if result.status.outcome is Outcome.WRITTEN:
            self.status_written_ms, self.unread = self.now_ms, ""
            self.unstored.clear()
        if result.is_support_applied:
            self.applied_ms = self.now_ms
        self.told = result.told or self.told
        if result.is_refused:
            self.refusals = tuple(item.words for item in result.actions if item.failure)
            self.has_refused = True
        elif self.has_refused:
            self.refusals, self.has_refused = (), False

    def settle(self, limit: int = 30) -> Plan:
        """Passes of the operator and of Kubernetes until the plan is empty, which is returned."""
        for _ in range(limit):
            plan = self.step()
            changed = self.controllers()
            if plan.is_empty and not changed:
                return plan
        raise AssertionError(f"no end of planning: {plan.actions} {plan.status}")

    def rest(self) -> None:
        """Let all that is due within minutes happen: back-offs and delayed writes end."""
        for _ in range(10):
            delay_s = self.settle().requeue_after_s
            if delay_s is None or delay_s > LONGEST_BACKOFF_S:
                return
            self.now_ms += round(delay_s * 1000) + 1
        raise AssertionError("the operator never comes to rest")

    def restart_operator(self) -> None:
        """Forget all that is only in the operator's memory."""
        self._reload()
        self.status_written_ms = self.applied_ms = 0
        self.tombstones.clear()
        self.deletions.clear()
        self.told = Told()

    def _reload(self) -> None:
        """Believe what the job's status says, as ``JobState`` does."""
        self.ledger = ledger_of(self.obj)
        state = JobState.of(self.obj)
        self.history, self.memory, self.unread = state.history, state.memory, state.unread
        if not self._has_stored(self.unstored):
            self.readings = [*self.unstored, *self.readings]
        self.unstored.clear()

    def _has_stored(self, batches: list[TimelineBatch]) -> bool:
        """Whether the history of the status holds them."""
        if not batches:
            return True
        cursor, last = self.history.cursor, batches[-1]
        return last.epoch == cursor.epoch and last.events[-1].seq <= cursor.seq

    def dated(self, pod: PodView) -> PodView:
        """A pod that is being deleted says since when the operator knows; as ``Cache`` does."""
        if not pod.deletion_ends_ms:
            return pod
        seen_ms = self.deletions.setdefault(pod.uid, self.now_ms)
        return dataclasses.replace(pod, deletion_seen_ms=seen_ms)

    # ---- the API server

    def remove(self, kind: Kind, name: str, uid: str) -> None:
        """Delete an object and, in the background, what it owns."""
        found = self.objects[kind].get(name)
        if found is None or found["metadata"]["uid"] != uid:
            return
        del self.objects[kind][name]
        if kind is POD:
            tombstone = dataclasses.replace(self.dated(pod_view(found)), is_gone=True)
            self.tombstones.append(tombstone)
            for job in self.objects[JOB].values():
                if job["metadata"]["uid"] == tombstone.owner_uid and job.get("status"):
                    job["status"]["failed"] = job["status"].get("failed", 0) + 1
            return
        below = JOB if kind is JOB_SET else POD
        for child in list(self.objects[below].values()):
            if child["metadata"]["ownerReferences"][0]["uid"] == uid:
                if below is POD:  # pods take their time
                    child["metadata"].setdefault("deletionTimestamp", rfc3339(self.now_ms))
                else:
                    self.remove(below, child["metadata"]["name"], child["metadata"]["uid"])

    def create(self, kind: Kind, manifest: Mapping[str, Any]) -> Object:
        """Store an object under a UID of its own."""
        name = manifest["metadata"]["name"]
        assert name not in self.objects[kind], f"{kind.kind} {name} is there already"
        made = {**manifest, "spec": dict(manifest.get("spec", {}))}
        made["metadata"] = {**manifest["metadata"], "uid": f"uid-{next(iter(self._uids))}"}
        self.objects[kind][name] = made
        return made

    # ---- the controllers

    def controllers(self) -> bool:
        """One step of JobSet, Job controller and kubelet; says whether anything changed."""
        before = self._shape()
        for jobset in list(self.objects[JOB_SET].values()):
            self._run_jobset(jobset)
        for job in list(self.objects[JOB].values()):
            self._run_job(job)
        self._end_pods()
        return self._shape() != before

    def _run_jobset(self, jobset: Object) -> None:
        ends = {"Failed", "Completed"}
        if any(c["type"] in ends for c in jobset.get("status", {}).get("conditions", [])):
            for job in list(self.objects[JOB].values()):
                # Jobs that have ended stay, with their pods.
                if owner_of(job) == jobset["metadata"]["uid"] and not has_failed(job):
                    self.remove(JOB, job["metadata"]["name"], job["metadata"]["uid"])
            return
        for replicated in jobset["spec"]["replicatedJobs"]:
            for index in range(replicated["replicas"]):
                name = f"{jobset['metadata']['name']}-{replicated['name']}-{index}"
                if name not in self.objects[JOB]:
                    self.create(JOB, make_job(jobset, replicated, name, index))
                job = self.objects[JOB][name]
                if owner_of(job) == jobset["metadata"]["uid"]:
                    job["spec"]["suspend"] = jobset["spec"]["suspend"]

    def _run_job(self, job: Object) -> None:
        uid = job["metadata"]["uid"]
        pods = [pod for pod in self.objects[POD].values() if owner_of(pod) == uid]
        if job["spec"].get("suspend"):
            job["status"] = {"conditions": [{"type": "Suspended", "status": "True"}]}
            for pod in pods:
                pod["metadata"]["deletionTimestamp"] = rfc3339(self.now_ms)
            return
        if not job.get("status", {}).get("startTime"):
            self.now_ms += 1  # the model's clock stands still in a pass
            resumed = [{"type": "Suspended", "status": "False"}] if job.get("status") else []
            started = rfc3339(self.now_ms + _WRITTEN_LATER_MS)
            job["status"] = {"startTime": started, "conditions": resumed}
        started = rfc3339(parse_rfc3339(job["status"]["startTime"]) - _WRITTEN_LATER_MS)
        lost = [s for s in self.tombstones if s.owner_uid == uid and s.created >= started]
        if not pods and not lost and not has_failed(job):
            self.remake_pod(job["metadata"]["name"])
        if self.answer:
            end_preflights(pods, self.answer)

    def remake_pod(self, name: str) -> None:
        """The Job controller replaces a pod of a Job, some time after it was lost."""
        made = make_pod(self.objects[JOB][name], next(iter(self._uids)))
        made["metadata"]["creationTimestamp"] = rfc3339(self.now_ms)
        self.create(POD, made)

    def _end_pods(self) -> None:
        for pod in list(self.objects[POD].values()):
            is_heard = pod["spec"].get("nodeName") not in self.dead_nodes
            if "deletionTimestamp" in pod["metadata"] and is_heard:
                self.remove(POD, pod["metadata"]["name"], pod["metadata"]["uid"])
        alive = {job["metadata"]["uid"] for job in self.objects[JOB].values()}
        self.tombstones = [stone for stone in self.tombstones if stone.owner_uid in alive]

    def _shape(self) -> list[tuple[str, object, object]]:
        all_ = (item for table in self.objects.values() for item in table.values())
        return [
            (i["metadata"]["uid"], i["spec"].get("suspend"), str(i.get("status"))) for i in all_
        ]

    # ---- what a test looks at

    @property
    def status(self) -> Object:
        """Status of the job."""
        status: Object = self.obj.get("status", {})
        return status

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason of a condition."""
        found = self._condition(kind)
        return found["status"], found["reason"]

    def message(self, kind: str) -> str:
        """Message of a condition."""
        return str(self._condition(kind)["message"])

    def _condition(self, kind: str) -> Mapping[str, Any]:
        return next(item for item in self.status["conditions"] if item["type"] == kind)

    def live_attempts(self) -> set[str]:
        """Attempts that have a pod."""
        labels = (pod["metadata"]["labels"] for pod in self.objects[POD].values())
        return {found.get("tpujob.dev/attempt", "") for found in labels} - {""}

    def pod(self, name: str) -> Object:
        """The pod whose name begins so."""
        return next(pod for key, pod in self.objects[POD].items() if key.startswith(name))

    def run_pods(self) -> None:
        """Every pod gets a node and is ready."""
        for pod in self.objects[POD].values():
            pod["spec"]["nodeName"] = "node"
            ready = [{"type": "Ready", "status": "True"}]
            pod["status"] = {"phase": "Running", "conditions": ready}

    def lose_node(self) -> None:
        """The node loses power, and its pods are evicted from it."""
        self.dead_nodes["node"] = self.now_ms
        evicted = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
        for pod in self.objects[POD].values():
            if pod["spec"].get("nodeName") == "node":
                pod["metadata"]["deletionTimestamp"] = rfc3339(self.now_ms + 30_000)
                pod["metadata"]["deletionGracePeriodSeconds"] = 30
                pod["status"]["conditions"] = [evicted]

    def find_no_place(self) -> None:
        """The scheduler finds no node for the pods that have none."""
        reason = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available."}
        for pod in self.objects[POD].values():
            if not pod["spec"].get("nodeName"):
                pod["status"] = {"phase": "Pending", "conditions": [reason]}

    def end_jobset(self, kind: str, message: str = "") -> None:
        """Every JobSet says that it has completed or failed."""
        for jobset in self.objects[JOB_SET].values():
            condition = {"type": kind, "status": "True", "message": message}
            jobset["status"] = {"conditions": [condition]}
