"""Pods without agents that are gone before the operator has looked, and what is concluded."""

import pytest

from tests.core.recreated import UNSEEN_MS, end, lose, pod_of, run, settled, take
from tests.core.world import World, job_object
from tests.specs import OWN_PROGRAM
from tpujob_operator.core.kinds import JOB, JOB_SET, POD


def test_pod_that_vanished_is_missed() -> None:
    """Deleted by force, or with its Job: the attempt is broken, whoever makes it anew."""
    world = settled()
    found = world.objects[JOB]["j-1-slice-1"]
    world.remove(JOB, "j-1-slice-1", found["metadata"]["uid"])
    world.controllers()
    incident = lose(world, UNSEEN_MS)
    assert (incident["cause"], incident["message"]) == ("preemption", "a pod is gone")
    assert world.deleted == ["JobSet j-1"]


def test_failed_jobset_is_an_end() -> None:
    """Lost while the operator was away: nothing but JobSet's word is left of it."""
    world = World(obj=job_object(**OWN_PROGRAM, recovery={"pods": "Recreate"}))
    world.settle()
    world.end_jobset("Failed", "jobset failed due to one or more job failures")
    incident = lose(world, UNSEEN_MS)
    assert (incident["cause"], incident["rung"]) == ("node", "R3")
    assert "job failures" in incident["message"]


def fail_jobset(world: World, host: int) -> None:
    """The Job of a host has failed, and JobSet with it."""
    failed = {"type": "Failed", "status": "True", "message": "BackoffLimitExceeded"}
    world.objects[JOB][f"j-1-slice-{host}"]["status"] |= {"conditions": [failed], "failed": 1}
    message = f"jobset failed (first failed job: j-1-slice-{host})"
    failure = {"type": "Failed", "status": "True", "message": message}
    world.objects[JOB_SET]["j-1"]["status"] = {"conditions": [failure]}


def vanish(world: World, host: int) -> None:
    """The pod of a host is deleted, and is gone before the operator looks."""
    take(world, host)
    pod = pod_of(world, host)
    world.remove(POD, pod["metadata"]["name"], pod["metadata"]["uid"])


def used_budgets(world: World) -> dict[str, int]:
    """Budgets of which something is used."""
    budgets = world.status["budgets"]
    return {name: item["used"] for name, item in budgets.items() if item["used"]}


@pytest.mark.parametrize("is_told_first", [False, True])
def test_pods_that_are_gone_have_the_cause_of_their_deletion(*, is_told_first: bool) -> None:
    """The watch of JobSets may be ahead of that of pods, and all may come at once."""
    world = settled()
    fail_jobset(world, 1)
    if is_told_first:
        world.step()
        world.now_ms += UNSEEN_MS - 1
        world.step()
        assert world.deleted == []
    vanish(world, 0)  # by JobSet, within the same second
    vanish(world, 1)
    incident = lose(world)
    assert (incident["cause"], incident["slice"], incident["node"]) == ("preemption", 1, "node")
    assert incident["message"].endswith(": deleted")
    assert used_budgets(world) == {"infrastructure": 1}


def test_ends_of_pods_that_are_gone_are_remembered() -> None:
    """A program's own end counts, though its pod is removed before the operator has decided."""
    world = settled()
    end(world, 0, 1, message="KeyError: 'x'")
    world.step()
    pod = pod_of(world, 0)
    world.remove(POD, pod["metadata"]["name"], pod["metadata"]["uid"])
    incident = lose(world)
    assert incident["cause"] == "userError"
    assert "KeyError: 'x'" in incident["message"]


@pytest.mark.parametrize("has_run", [False, True])
def test_pods_that_nobody_has_seen_again_spend_nothing_of_the_users(*, has_run: bool) -> None:
    """A pod that has ended stays with its Job: one that is gone without a trace was deleted."""
    world = World(obj=job_object(**OWN_PROGRAM, recovery={"pods": "Recreate"}))
    world.settle()
    if has_run:
        run(world)
    vanish(world, 0)
    fail_jobset(world, 0)
    world.restart_operator()
    incident = lose(world, UNSEEN_MS)
    place = (incident["slice"], incident["worker"])
    assert (incident["cause"], place) == ("preemption", (0, 0))
    assert incident["message"].startswith("a pod of j-1-slice-0 is gone: ")
    assert "first failed job: j-1-slice-0" in incident["message"]
    assert used_budgets(world) == {"infrastructure": 1}


@pytest.mark.parametrize("is_dated", [False, True])
@pytest.mark.parametrize("is_job_known", [False, True])
def test_killed_program_is_not_blamed_on_what_followed(
    *, is_dated: bool, is_job_known: bool
) -> None:
    """JobSet takes the other slices within the second in which a program is killed."""
    world = settled()
    end(world, 1, 137, reason="OOMKilled")
    if not is_dated:
        [container] = pod_of(world, 1)["status"]["containerStatuses"]
        del container["state"]["terminated"]["finishedAt"]
    if is_job_known:
        fail_jobset(world, 1)
    take(world, 0)
    incident = lose(world)
    assert (incident["cause"], incident["slice"]) == ("process", 1)


def test_program_is_blamed_whose_job_has_failed_first() -> None:
    """The other slice is taken because of it, though the times could tell otherwise."""
    world = settled()
    end(world, 1, 1)
    fail_jobset(world, 1)
    take(world, 0)
    incident = lose(world)
    assert (incident["cause"], incident["slice"]) == ("userError", 1)
