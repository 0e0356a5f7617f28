"""Pods that the API server refuses to the Job controller are told of, with what to do."""

from __future__ import annotations

import pytest

from tests.core.world import World
from tpujob_operator.core.kinds import JOB, POD
from tpujob_operator.core.policies.unmade import podless_jobs

FORBIDDEN = 'Error creating: pods "j-1-slice-0-0-x7x4z" is forbidden: '


def _without_pods() -> World:
    """A job whose Jobs have been started a while ago, and have made no pod."""
    world = World()
    world.settle()
    world.objects[POD].clear()
    world.now_ms += 6_000
    return world


def _message(world: World) -> str:
    stalled = next(item for item in world.status["conditions"] if item["type"] == "Stalled")
    return str(stalled["message"])


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (
            f'{FORBIDDEN}error looking up service account ns/t: serviceaccount "t" not found',
            "Create the service account",
        ),
        (f"{FORBIDDEN}no PriorityClass with name high was found", "spec.priorityClassName"),
        (f"{FORBIDDEN}exceeded quota: q, requested: pods=1", "quota"),
        (f'{FORBIDDEN}violates PodSecurity "restricted:latest"', "Pod Security Standard"),
        ("Error creating: something else", "Correct the cause"),
    ],
)
def test_refused_pods_stall_the_job(words: str, advice: str) -> None:
    """In the API server's words, less the name that is another one each time."""
    world = _without_pods()
    world.unmade = {"j-1-slice-0": words}
    world.step()
    assert world.condition("Stalled") == ("True", "PodsRefused")
    assert advice in _message(world)
    assert "x7x4z" not in _message(world)
    assert words.rpartition(": ")[2] in _message(world)


def test_another_name_is_no_news() -> None:
    """The status is not written again for each try of the Job controller."""
    world = _without_pods()
    world.unmade = {"j-1-slice-0": f"{FORBIDDEN}exceeded quota"}
    world.step()
    world.unmade = {"j-1-slice-0": f"{FORBIDDEN.replace('x7x4z', 'abcde')}exceeded quota"}
    plan = world.step()
    assert plan.is_empty
    assert plan.requeue_after_s is not None


def test_pods_that_are_made_end_it() -> None:
    """The condition goes with its cause."""
    world = _without_pods()
    world.unmade = {"j-1-slice-0": f"{FORBIDDEN}exceeded quota"}
    world.step()
    world.unmade = {}
    world.settle()
    assert world.objects[POD]
    assert world.condition("Stalled")[0] == "False"


def test_jobs_are_asked_about_when_they_should_have_pods() -> None:
    """Not before some seconds have passed, and not while they are suspended, over or deleted."""
    world = _without_pods()
    snapshot = world.snapshot()
    asked = {job.name for job in podless_jobs(snapshot.jobs, snapshot.pods, world.now_ms)}
    assert asked == set(world.objects[JOB])
    assert not podless_jobs(snapshot.jobs, snapshot.pods, world.now_ms - 5_500)
    suspended, over, deleted = list(world.objects[JOB].values())
    suspended["spec"]["suspend"] = True
    over["status"]["conditions"] = [{"type": "Complete", "status": "True"}]
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    snapshot = world.snapshot()
    assert not podless_jobs(snapshot.jobs, snapshot.pods, world.now_ms)


def test_without_words_the_operator_looks_again() -> None:
    """Nothing is said as long as nothing is known."""
    world = _without_pods()
    plan = world.step()
    assert world.condition("Stalled")[0] == "False"
    assert plan.requeue_after_s is not None
    assert plan.requeue_after_s <= 10
