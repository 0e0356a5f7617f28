"""One long job under one fault after another: rung, budget, step resumed from, losses."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from faults import catalogue, processes
from faults.catalogue import Injector
from faults.scene import LEADER, Place, Scene
from faults.training import TRAINING, course
from localcluster.kubeapi import Object
from tests.e2e import diary
from tests.e2e.conftest import Installed
from tests.e2e.rig import Jobs, assert_adds_up, container_restarts, uids

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

_NO_LIMITS = dict.fromkeys(("userError", "process", "infrastructure", "noProgress"), -1)
_HANG_S = 10  # a step takes 0.05 s, on a machine that may be busy


class Case(NamedTuple):
    """A fault, and how it is to be answered."""

    make: Injector
    place: Place
    cause: str
    rung: str
    budget: str
    words: str = ""  # in the incident's message
    lost_nothing: bool = False  # everybody has saved before


def _fault(name: str) -> Injector:
    return catalogue.CATALOGUE[name].make


def _exit(code: int) -> Injector:
    return functools.partial(processes.leave_with, code=code)


_PROCESS = {
    "kill": Case(_fault("kill-trainer"), Place(1, 1), "process", "R0", "process", "SIGKILL"),
    "kill-leader": Case(_fault("kill-trainer"), LEADER, "process", "R0", "process", "SIGKILL"),
    "crash": Case(_fault("crash-trainer"), Place(0, 1), "process", "R0", "process", "SIGSEGV"),
    "stop": Case(_fault("stop-trainer"), Place(1, 0), "hang", "R0", "process", "SIGSTOP"),
    "block": Case(_fault("block-trainer"), Place(0, 1), "hang", "R0", "process", "in obey"),
    "exit-3": Case(_exit(3), Place(0, 1), "userError", "R0", "userError", "exited with code 3"),
    "memory": Case(
        _fault("exhaust-memory"), Place(1, 1), "process", "R0", "process", "out of memory"
    ),
}
_POD = {
    "delete": Case(
        _fault("delete-pod"), Place(0, 1), "preemption", "R2", "infrastructure", "", True
    ),
    "evict-leader": Case(
        _fault("evict-pod"), LEADER, "preemption", "R2", "infrastructure", "", True
    ),
    "slice": Case(_fault("lose-slice"), Place(1, 0), "preemption", "R2", "infrastructure"),
}
_CONTAINER = {
    "container": Case(_fault("kill-container"), Place(1, 0), "node", "R1", "infrastructure"),
}


class LongJob:
    """A job of two slices that trains until it is deleted."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.scene = jobs.scene("j")

    def start(self) -> None:
        """Create it."""
        template = self.jobs.template("python", "-c", TRAINING)
        template["spec"]["containers"][0]["resources"] = {"limits": {"memory": "256Mi"}}
        self.jobs.create(
            "j",
            template,
            slices=2,
            recovery={"budgets": _NO_LIMITS},
            health={"hang": {"minSeconds": _HANG_S}},
        )

    def calm(self) -> Object:
        """Wait until it trains, and has saved since what happened last."""

        def has_saved(status: Object) -> bool:
            incidents = status.get("incidents") or [{"step": 0, "recoveredAfterSeconds": 0}]
            saved = status.get("checkpoint", {}).get("step", 0)
            return "recoveredAfterSeconds" in incidents[-1] and saved > incidents[-1]["step"]

        return self.jobs.wait_status("j", has_saved, "j trains and saves")

    def hit(self, case: Case) -> tuple[Object, Object]:
        """Make a fault; returns the status before it and the one after the recovery."""
        before = self.calm()
        case.make(self.scene, case.place)

        def is_over(status: Object) -> bool:
            is_new = status["restarts"] > before["restarts"]
            return is_new and "recoveredAfterSeconds" in status["incidents"][-1]

        self.jobs.wait_status("j", is_over, "j has recovered")
        return before, self.calm()

    def check(self, case: Case, before: Object, after: Object) -> None:
        """One incident more, as expected, and the course of a job that was never hit."""
        assert after["restarts"] == before["restarts"] + 1, after["incidents"]
        incident = after["incidents"][-1]
        expected = (case.cause, case.rung, *case.place)
        found = (incident["cause"], incident["rung"], incident["slice"], incident["worker"])
        assert found == expected, incident
        assert case.words in incident["message"], incident
        charged = {
            name: budget["used"] - before["budgets"][name]["used"]
            for name, budget in after["budgets"].items()
            if name != "noProgress"
        }
        assert charged == dict.fromkeys(charged, 0) | {case.budget: 1}
        lines = diary.read(self.scene.shell(LEADER, "cat $FOLDER/diary"))
        diary.assert_resumes_are_right(lines)
        resumed = diary.resumed_at(lines, after["generation"])
        assert incident["lostSteps"] == max(0, incident["step"] - resumed), incident
        if case.lost_nothing:
            assert incident["lostSteps"] == 0, incident
        assert_adds_up(after)
        self._check_losses()

    def _check_losses(self) -> None:
        """Every loss is the uninterrupted run's."""
        told = self.jobs.losses("j")
        undisturbed = course(max(told))
        assert told == {step: undisturbed[step] for step in told}


@pytest.fixture(scope="module")
def long_job(e2e_cluster: Installed) -> Iterator[LongJob]:
    """The one job of this module."""
    jobs = Jobs(e2e_cluster.target, e2e_cluster.cluster, f"faults-{uuid.uuid4().hex[:8]}")
    jobs.kube.ensure_namespace()
    made = LongJob(jobs)
    made.start()
    made.calm()
    yield made
    made.jobs.kube.delete_namespace()


# Faults that make nodes suspect come last: pods that wait for a node would be moved off them.


@pytest.mark.parametrize("case", _POD.values(), ids=_POD)
def test_pod_costs_its_slice_and_no_other(long_job: LongJob, case: Case) -> None:
    """R2: a slice that has lost a pod is made anew at once; the other keeps its pods."""
    pods = uids(long_job.jobs.pods("j"))
    before, after = long_job.hit(case)
    now = uids(long_job.jobs.pods("j"))
    assert now.keys() == pods.keys()
    kept = {name for name in now if now[name] == pods[name]}
    assert kept == {f"j-1-slice-{1 - case.place.slice}-{host}" for host in (0, 1)}
    long_job.check(case, before, after)


@pytest.mark.parametrize("name", ["drain-node", "taint-node"])
def test_node_that_turns_its_pods_out(long_job: LongJob, name: str) -> None:
    """R2: everybody saves and leaves; the slice waits until its nodes take pods again."""
    fault = catalogue.CATALOGUE[name]
    case = Case(fault.make, Place(1, 1), "preemption", "R2", "infrastructure", "", True)
    before = long_job.calm()
    fault.make(long_job.scene, case.place)
    try:
        long_job.jobs.wait_status(
            "j", lambda status: status["restarts"] > before["restarts"], "the pod has to go"
        )
    finally:
        assert fault.heal is not None
        fault.heal(long_job.scene, case.place)
    long_job.check(case, before, long_job.calm())


@pytest.mark.parametrize("case", _CONTAINER.values(), ids=_CONTAINER)
def test_container_is_restarted_in_its_pod(long_job: LongJob, case: Case) -> None:
    """R1: the kubelet restarts a dead container, its agent rejoins, and the pod stays."""
    if long_job.jobs.cluster is None:
        pytest.skip("a container is killed from its node, which needs the local cluster")
    pods = long_job.jobs.pods("j")
    before, after = long_job.hit(case)
    long_job.check(case, before, after)
    now = long_job.jobs.pods("j")
    assert uids(now) == uids(pods)
    assert container_restarts(now) == container_restarts(pods) + 1


@pytest.mark.parametrize("case", _PROCESS.values(), ids=_PROCESS)
def test_process_is_replaced_in_its_pod(long_job: LongJob, case: Case) -> None:
    """R0: pods and containers stay, whatever happens to the processes that train in them."""
    pods = long_job.jobs.pods("j")
    before, after = long_job.hit(case)
    long_job.check(case, before, after)
    assert after["generation"] == before["generation"] + 1
    now = long_job.jobs.pods("j")
    assert uids(now) == uids(pods)
    assert container_restarts(now) == container_restarts(pods)


def test_operator_is_not_missed(long_job: LongJob) -> None:
    """A killed operator: the job recovers meanwhile, and status catches up."""
    pods = uids(long_job.jobs.pods("j"))
    case = _PROCESS["kill"]

    def both(scene: Scene, place: Place) -> None:
        _fault("kill-operator")(scene, place)
        case.make(scene, place)

    before, after = long_job.hit(case._replace(make=both))
    long_job.check(case, before, after)
    assert uids(long_job.jobs.pods("j")) == pods
    assert (after["attempt"], long_job.jobs.jobsets("j")) == (1, ["j-1"])
