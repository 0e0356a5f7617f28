"""One long job under one fault after another: rung, budget, step resumed from, losses."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from faults import evidence, judgement
from faults.answers import ANSWERS, Answer
from faults.catalogue import CATALOGUE, Injector
from faults.jobs import endless_job
from faults.scene import LEADER, Place, Scene
from localcluster.kubeapi import Object
from tests.e2e.conftest import Installed
from tests.e2e.rig import Jobs, container_restarts, uids

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


class Case(NamedTuple):
    """A fault, and how it is to be answered."""

    make: Injector
    place: Place
    answer: Answer | None


def _case(name: str, place: Place) -> Case:
    return Case(CATALOGUE[name].make, place, ANSWERS[name])


_PROCESS = {
    "kill": _case("kill-trainer", Place(1, 1)),
    "kill-leader": _case("kill-trainer", LEADER),
    "crash": _case("crash-trainer", Place(0, 1)),
    "stop": _case("stop-trainer", Place(1, 0)),
    "block": _case("block-trainer", Place(0, 1)),
    "exit": _case("exit-trainer", Place(0, 1)),
    "memory": _case("exhaust-memory", Place(1, 1)),
}
_POD = {
    "delete": _case("delete-pod", Place(0, 1)),
    "evict-leader": _case("evict-pod", LEADER),
    "slice": _case("lose-slice", Place(1, 0)),
}
_CONTAINER = {"container": _case("kill-container", Place(1, 0))}


class LongJob:
    """A job of two slices that trains until it is deleted."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.scene = jobs.scene("j")

    def start(self) -> None:
        """Create it."""
        self.jobs.submit(endless_job(self.jobs.target, self.jobs.namespace, "j"))

    def calm(self) -> Object:
        """Wait until it trains, and has saved since what happened last."""
        return self.jobs.wait_status("j", judgement.is_calm, "j trains and saves")

    def hit(self, case: Case) -> tuple[Object, Object]:
        """Make a fault; returns the status before it and the one after the recovery."""
        before = self.calm()
        case.make(self.scene, case.place)
        is_over = functools.partial(judgement.has_recovered, before)
        self.jobs.wait_status("j", is_over, "j has recovered")
        return before, self.calm()

    def check(self, case: Case, before: Object, after: Object) -> None:
        """One incident more, as expected, and the course of a job that was never hit."""
        lines, told = evidence.starts_and_saves(self.scene), self.jobs.losses("j")
        wrong = judgement.of_status(case.answer, case.place, before, after)
        assert wrong + judgement.of_training(lines, told, before, after) == []


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
    fault, case = CATALOGUE[name], _case(name, Place(1, 1))
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
        CATALOGUE["kill-operator"].make(scene, place)
        case.make(scene, place)

    before, after = long_job.hit(case._replace(make=both))
    long_job.check(case, before, after)
    assert uids(long_job.jobs.pods("j")) == pods
    assert (after["attempt"], long_job.jobs.jobsets("j")) == (1, ["j-1"])
