"""Lives of jobs: what users do and what happens to pods, step by step.

A life is a generator. What it yields is the name of the step that comes now;
every step waits for what must come of it, so that the next one finds the same
situation in every run. To add a life, write one and put it into ``LIVES``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from localcluster.kubeapi import Object
from tests.operator.rig import Jobs, is_alive
from tests.specs import OWN_PROGRAM
from tests.sweep.census import Population
from tests.sweep.kubelet import Kubelet
from tests.waiting import wait_until
from tpujob_operator.core.kinds import JOB, POD, SECRET, SERVICE, TPU_TRAINING_JOB, Kind
from tpujob_operator.core.manifests.names import ENDED_ANNOTATION


class Stage:
    """Where a life is played: a namespace, its user, its pods."""

    def __init__(self, jobs: Jobs, population: Population, kubelet: Kubelet) -> None:
        self.jobs = jobs
        self.kubelet = kubelet
        self.population = population

    def status(self, job: str = "j") -> Object:
        """A job's status; empty: there is none."""
        found = self.population.find(TPU_TRAINING_JOB, job) or {}
        status: Object = found.get("status") or {}
        return status

    def pods(self) -> dict[str, Object]:
        """Pods that run and are not being deleted, by the names of their roles."""
        running = [pod for pod in self.population.all(POD) if _is_running(pod)]
        names = self.population.names
        return {names.of("pods", pod["metadata"]["name"]): pod for pod in running}

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until something is so.

        Raises:
            AssertionError: it takes too long.
        """
        wait_until(condition, what)

    def wait_pods(self, *names: str) -> None:
        """Wait until exactly these pods run."""
        self.wait(lambda: set(self.pods()) == set(names), f"pods {', '.join(names)}")

    def wait_status(self, is_so: Callable[[Object], Any], what: str) -> None:
        """Wait for a status of job ``j``."""
        self.wait(lambda: self.status() and is_so(self.status()), what)

    def wait_gone(self, kind: Kind, obj: Object) -> None:
        """Wait until this incarnation of an object is gone."""
        meta = obj["metadata"]

        def is_gone() -> bool:
            found = self.population.find(kind, meta["name"])
            return found is None or found["metadata"]["uid"] != meta["uid"]

        self.wait(is_gone, f"end of {kind.kind} {meta['name']}")


def lost_slice(stage: Stage) -> Iterator[str]:
    """A job in place: a pod of one slice is lost, then the coordinator's."""
    yield "create"
    stage.jobs.create("j")
    _runs(stage, 1)
    yield "lose a worker pod"
    _lose(stage, "j-1-slice-1-0", "j-1-slice-1")
    _runs(stage, 1)
    yield "lose the coordinator's pod"
    _lose(stage, "j-1-coordinator-0-0", "j-1-coordinator-0")
    _runs(stage, 1)


def suspended(stage: Stage) -> Iterator[str]:
    """A job that is suspended and resumed, and whose spec changes while it runs."""
    yield "create"
    stage.jobs.create("j")
    _runs(stage, 1)
    yield "suspend"
    stage.jobs.change("j", suspend=True)
    stage.wait(lambda: not stage.population.all(POD), "end of all pods")
    stage.wait_status(lambda status: status["state"] == "Suspended", "suspended job")
    yield "resume"
    stage.jobs.change("j", suspend=False)
    _runs(stage, 1)
    yield "change the spec"
    stage.jobs.change("j", slices=1)
    _runs(stage, 2, slices=1)


def recreated(stage: Stage) -> Iterator[str]:
    """A program of one's own: a pod fails, another one is deleted, and in the end all is done."""
    names = ("slice-0-0", "slice-1-0")
    yield "create"
    stage.jobs.create("j", **OWN_PROGRAM, recovery={"pods": "Recreate"})
    _runs_alone(stage, 1, names)
    yield "a pod fails"
    _end_pod(stage, stage.pods()["j-1-slice-1-0"], 137, "OOMKilled")
    _runs_alone(stage, 2, names)
    yield "a pod is deleted"
    stage.jobs.delete(POD, stage.pods()["j-2-slice-0-0"]["metadata"]["name"])
    _runs_alone(stage, 3, names)
    yield "all pods end well"
    for pod in stage.pods().values():
        _end_pod(stage, pod, 0, "Completed")
    stage.wait_status(lambda status: status["state"] == "Succeeded", "success")
    stage.wait(lambda: _is_marked(stage), "the mark of the end")


def namesakes(stage: Stage) -> Iterator[str]:
    """A job among objects of others that have the names and labels of its own."""
    yield "create foreign objects"
    for body in (_foreign_secret(stage), _foreign_service(stage)):
        stage.jobs.api.apply(body)
    yield "create"
    stage.jobs.create("j", slices=1)
    _runs(stage, 1, slices=1)
    first = stage.population.find(TPU_TRAINING_JOB, "j")
    assert first is not None
    yield "delete"
    stage.jobs.delete(TPU_TRAINING_JOB, "j")
    stage.wait_gone(TPU_TRAINING_JOB, first)
    yield "create again"
    stage.jobs.create("j")
    _runs(stage, 1)
    stage.wait(lambda: not _children_of(stage, first["metadata"]["uid"]), "end of the first job")


Life = Callable[[Stage], Iterator[str]]
LIVES: dict[str, Life] = {
    "lost-slice": lost_slice,
    "suspended": suspended,
    "recreated": recreated,
    "namesakes": namesakes,
    "elected": lost_slice,
}
#: Lives whose operator takes part in an election.
ELECTED = frozenset({"elected"})


def _runs(stage: Stage, attempt: int, slices: int = 2) -> None:
    """Wait until all pods of an attempt run, and the job's status knows it."""
    workers = [f"j-{attempt}-slice-{index}-0" for index in range(slices)]
    stage.wait_pods(f"j-{attempt}-coordinator-0-0", *workers)
    stage.wait_status(
        lambda status: (status.get("attempt"), status["slices"]["running"]) == (attempt, slices),
        f"{slices} slices of attempt {attempt} in the status",
    )


def _runs_alone(stage: Stage, attempt: int, names: tuple[str, ...]) -> None:
    """Wait until a job without a coordinator runs."""
    stage.wait_pods(*(f"j-{attempt}-{name}" for name in names))
    stage.wait_status(
        lambda status: (status.get("attempt"), status["state"]) == (attempt, "Running"),
        f"attempt {attempt} runs",
    )


def _lose(stage: Stage, role: str, job: str) -> None:
    """Delete a pod, whose program ends only after its Job was made anew."""
    before = stage.population.find(JOB, job)
    assert before is not None
    pod = stage.pods()[role]
    stage.kubelet.hold(pod)
    stage.jobs.delete(POD, pod["metadata"]["name"])
    stage.wait_gone(JOB, before)
    stage.kubelet.release(pod)


def _is_marked(stage: Stage) -> bool:
    """Whether job ``j`` has the annotation that outlives its status: the last write of its life."""
    found = stage.population.find(TPU_TRAINING_JOB, "j") or {"metadata": {}}
    return ENDED_ANNOTATION in (found["metadata"].get("annotations") or {})


def _end_pod(stage: Stage, pod: Object, code: int, reason: str) -> None:
    container = {
        "name": "main", "image": "mine", "imageID": "", "ready": False, "restartCount": 0,
        "state": {"terminated": {"exitCode": code, "reason": reason}},
    }  # fmt: skip
    phase = "Failed" if code else "Succeeded"
    status = {"phase": phase, "containerStatuses": [container]}
    stage.jobs.set_pod(pod["metadata"]["name"], status)


def _foreign_secret(stage: Stage) -> Object:
    body = {"apiVersion": SECRET.api_version, "kind": SECRET.kind, "data": {"mine": "AAAA"}}
    return {**body, "metadata": _foreign(stage, "j-token")}


def _foreign_service(stage: Stage) -> Object:
    spec = {"selector": {"app": "mine"}, "ports": [{"port": 80}]}
    body = {"apiVersion": SERVICE.api_version, "kind": SERVICE.kind, "spec": spec}
    return {**body, "metadata": _foreign(stage, "j-coordinator")}


def _foreign(stage: Stage, name: str) -> Object:
    labels = {"tpujob.dev/job": "j"}
    return {"name": name, "namespace": stage.jobs.namespace, "labels": labels}


def _children_of(stage: Stage, uid: str) -> list[Object]:
    found = list(stage.population.objects.values())
    return [obj for obj in found if _is_owned_by(obj, uid)]


def _is_owned_by(obj: Object, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in obj["metadata"].get("ownerReferences", ()))


def _is_running(pod: Object) -> bool:
    return is_alive(pod) and bool(pod.get("status", {}).get("phase") == "Running")
