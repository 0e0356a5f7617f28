"""Lives whose recoveries may take as long as another replica needs to become the leader."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from localcluster.kubeapi import Object
from tests.sweep.lives import LIVES as SWEPT
from tests.sweep.lives import Life, Stage
from tests.sweep.play import Outcome
from tpujob_operator.api.reasons import COORDINATOR_UNREACHABLE
from tpujob_operator.core.kinds import JOB, POD

_PODS = {
    "j-1-slice-1": "j-1-slice-1-0",
    "j-1-coordinator-0": "j-1-coordinator-0-0",
}
_DEGRADED = "tputrainingjobs/j:.status.conditions[Degraded]"


def lost_pods(stage: Stage) -> Iterator[str]:
    """A job in place: a pod of one slice is lost, then the coordinator's."""
    yield "create"
    stage.jobs.create("j")
    _runs(stage)
    for job, pod in _PODS.items():
        yield f"lose pod {pod}"
        _lose(stage, pod, job)
        _runs(stage)


LIVES: dict[str, Life] = {
    "lost-pods": lost_pods,
    "recreated": SWEPT["recreated"],
    "suspended": SWEPT["suspended"],
}


def allowed(life: str, outcome: Outcome) -> Sequence[Outcome]:
    """What a life may end in, given what one without a blow ended in."""
    found = [outcome]
    if life == "lost-pods":
        found.append(_replaced_by_controller(outcome))
    if any("coordinator" in label for label in outcome.made):
        found.append(_silent(outcome))
    return found


def _replaced_by_controller(outcome: Outcome) -> Outcome:
    """The Jobs of lost pods stay.

    The operator deletes the Job of a lost pod at once. Without it, the Job controller replaces the
    pod after 10 s, about when the other replica becomes the leader.
    """
    jobs = {f"jobs/{job}" for job in _PODS}
    made = {label: 1 if label in jobs else count for label, count in outcome.made.items()}
    deleted = {label: count for label, count in outcome.deleted.items() if label not in jobs}
    return dataclasses.replace(outcome, made=made, deleted=deleted)


def _silent(outcome: Outcome) -> Outcome:
    """The played coordinator has been silent for a minute, and the job says so."""
    words = {"status": "True", "reason": COORDINATOR_UNREACHABLE, "message": "(any)"}
    degraded = {f"{_DEGRADED}.{field}": word for field, word in words.items()}
    return dataclasses.replace(outcome, state={**outcome.state, **degraded})


def _runs(stage: Stage) -> None:
    """Wait until all pods run, and the job's status knows it."""
    stage.wait_pods("j-1-coordinator-0-0", "j-1-slice-0-0", "j-1-slice-1-0")
    stage.wait_status(
        lambda status: (status.get("attempt"), status["slices"]["running"]) == (1, 2),
        "two slices in the status",
    )


def _lose(stage: Stage, role: str, job: str) -> None:
    """Delete a pod, whose program ends only after its replacement is due."""
    before = stage.population.find(JOB, job)
    assert before is not None
    pod = stage.pods()[role]
    stage.kubelet.hold(pod)
    stage.jobs.delete(POD, pod["metadata"]["name"])
    stage.wait(lambda: _is_replaced(stage, role, job, before), f"another Job or pod for {role}")
    stage.kubelet.release(pod)


def _is_replaced(stage: Stage, role: str, job: str, before: Object) -> bool:
    """Whether the Job is another one, or has another pod that runs."""
    found = stage.population.find(JOB, job)
    is_new = found is None or found["metadata"]["uid"] != before["metadata"]["uid"]
    return is_new or role in stage.pods()
