"""What the operator decides about jobs whose programs no agent runs."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.core.recreated import GATHER_MS, end, lose, pod_of, run, settled, take
from tests.core.world import START_MS, World, job_object
from tests.specs import OWN_PROGRAM
from tpujob_agent.notices import Notice
from tpujob_agent.protocol import Cause
from tpujob_operator.core.kinds import JOB, JOB_SET, POD
from tpujob_operator.core.memory import CALM_MS
from tpujob_operator.core.nodes import NodeView


def test_pods_are_all_there_is() -> None:
    """The job runs when all pods do, without a coordinator; nobody claims to know its steps."""
    world = settled()
    assert list(world.objects[JOB]) == ["j-1-slice-0", "j-1-slice-1"]
    assert world.applied_ms == 0  # neither Secret nor Service
    assert world.status["state"] == "Running"
    assert world.condition("Ready") == ("True", "Training")
    assert "nobody tells their steps" in world.message("Ready")
    assert world.status["goodput"]["unsettledSeconds"] == 0
    world.now_ms += 60_000
    world.end_jobset("Completed")
    world.settle()
    assert world.status["state"] == "Succeeded"
    assert world.message("Succeeded") == "The programs of all hosts have ended well."
    seconds = world.status["goodput"]["seconds"]
    assert seconds["productive"] == pytest.approx(60)
    assert seconds["unattributed"] == 0


@pytest.mark.parametrize(
    ("code", "terminated", "cause", "words"),
    [
        (1, {"message": "ValueError: no data\n"}, "userError", "code 1; its last output:\nValue"),
        (137, {"reason": "Error"}, "process", "killed by SIGKILL"),
        (137, {"reason": "OOMKilled"}, "process", "out of memory (OOMKilled): killed by SIGKILL"),
        (139, {}, "process", "crashed with SIGSEGV"),
        (65, {}, "checkpoint", "no readable checkpoint"),
        (70, {}, "hang", "stalled"),
    ],
)
def test_ends_have_the_causes_that_agents_would_give(
    code: int, terminated: dict[str, Any], cause: str, words: str
) -> None:
    """Exit codes and signals mean the same with and without an agent; a new attempt follows."""
    world = settled()
    end(world, 1, code, **terminated)
    incident = lose(world)
    assert (incident["cause"], incident["rung"], incident["slice"]) == (cause, "R3", 1)
    assert words in incident["message"]
    assert world.deleted == ["JobSet j-1"]
    assert world.condition("Restarting")[0] == "True"
    world.rest()
    assert list(world.objects[JOB_SET]) == ["j-2"]
    run(world)
    assert world.condition("Restarting")[0] == "False"
    assert world.status["incidents"][0]["recoveredAfterSeconds"] > 0
    assert (world.status["attempt"], world.status["restarts"]) == (2, 1)


@pytest.mark.parametrize(
    ("reason", "notice", "cause"),
    [
        ("", None, "preemption"),  # deleted by somebody
        ("EvictionByEvictionAPI", None, "preemption"),
        ("PreemptionByScheduler", None, "preemption"),
        ("DeletionByTaintManager", None, "node"),
        ("EvictionByEvictionAPI", Cause.MAINTENANCE, "maintenance"),
    ],
)
def test_pods_that_are_taken_spend_nothing_of_the_users(
    reason: str, notice: Cause | None, cause: str
) -> None:
    """Deletion, eviction and lost nodes are infrastructure, however often they come."""
    world = settled()
    if notice:
        announced = Notice("node", notice, 0, "it goes")
        world.nodes["node"] = NodeView("node", "u", START_MS, notice=announced)
    take(world, 0, reason)
    incident = lose(world)
    assert incident["cause"] == cause
    used = {name: item["used"] for name, item in world.status["budgets"].items() if item["used"]}
    assert used == {"infrastructure": 1} | ({"noProgress": 1} if cause == "node" else {})


def test_kubelet_that_refuses_a_pod_is_no_error_of_the_user() -> None:
    """A pod that fails without a container that has run was refused by its node."""
    world = settled()
    pod_of(world, 0)["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
    incident = lose(world)
    assert (incident["cause"], incident["node"]) == ("node", "node")
    assert "UnexpectedAdmissionError" in incident["message"]


def test_peers_that_fail_are_not_the_cause() -> None:
    """Programs whose peer was killed exit with an error of their own, and may be seen first."""
    world = settled(budgets={"userError": 0})
    end(world, 0, 1, after_ms=1_000)
    world.step()
    end(world, 1, 137)
    incident = lose(world)
    assert (incident["cause"], incident["slice"]) == ("process", 1)
    assert world.condition("Failed")[0] == "False"


@pytest.mark.parametrize(("after_ms", "cause"), [(2_000, "userError"), (-2_000, "preemption")])
def test_pods_deleted_after_an_end_are_its_consequence(after_ms: int, cause: str) -> None:
    """The Job controller deletes what is left of a Job that has failed; a drain comes first."""
    world = settled()
    end(world, 0, 1)
    take(world, 1, after_ms=after_ms)
    assert lose(world)["cause"] == cause


def test_spent_budget_ends_the_job() -> None:
    """The loss that spends a budget ends the job, with the program's words and what to do."""
    world = settled(budgets={"userError": 1})
    end(world, 0, 1)
    lose(world)
    world.rest()
    run(world)
    end(world, 0, 2, message="KeyError: 'x'")
    lose(world)
    assert world.condition("Failed") == ("True", "BudgetSpent")
    message = world.message("Failed")
    assert "budget userError spent: 2 restarts, 1 allowed" in message
    assert "KeyError" in message
    assert message.endswith("Correct the program and create the job again.")
    world.rest()
    assert not world.objects[JOB_SET]


@pytest.mark.parametrize(("run_ms", "state"), [(CALM_MS, "Recovering"), (1_000, "Failed")])
def test_ten_minutes_count_as_progress(run_ms: int, state: str) -> None:
    """Nobody tells of checkpoints: a world that has run for so long is no restart in vain."""
    world = settled(budgets={"noProgress": 1})
    for _ in range(2):
        world.now_ms += run_ms
        end(world, 0, 137)
        lose(world)
        if world.status["attempt"] == 2:
            world.rest()
            run(world)
    assert world.status["state"] == state


def test_restarts_wait_ever_longer() -> None:
    """Errors of the program that come one after the other are answered more slowly."""
    world = settled(budgets={"userError": -1, "noProgress": -1})
    waits = []
    for _ in range(4):
        end(world, 0, 1)
        lose(world)
        waits.append(world.memory.next_attempt_ms - world.now_ms)
        world.rest()
        run(world)
    assert waits == [0, 1_000, 2_000, 4_000]
    assert world.status["goodput"]["seconds"]["backoff"] == pytest.approx(7, abs=0.5)


def test_lost_worlds_are_unattributed() -> None:
    """Nobody can say how much of a lost world was saved; all else is told as ever."""
    world = settled()
    world.now_ms += 60_000
    end(world, 0, 1)
    lose(world)
    world.now_ms += 3_000  # until the old pods are gone
    world.rest()
    world.now_ms += 10_000
    run(world)
    world.now_ms += 20_000
    world.end_jobset("Completed")
    world.settle()
    goodput = world.status["goodput"]
    seconds = goodput["seconds"]
    assert seconds["unattributed"] == pytest.approx(60, abs=0.1)
    assert seconds["detection"] == pytest.approx(2, abs=0.1)
    assert seconds["teardown"] == pytest.approx(3, abs=0.1)
    assert seconds["provisioning"] + seconds["image"] >= 10
    assert seconds["productive"] == pytest.approx(20, abs=0.1)
    assert seconds["rollback"] == 0
    assert sum(seconds.values()) == pytest.approx(goodput["wallSeconds"])


def test_kubelets_with_other_clocks_bend_no_time() -> None:
    """An end that a kubelet dates into the future is one of now."""
    world = settled()
    world.now_ms += 60_000
    end(world, 0, 137, after_ms=30_000)
    lose(world)
    goodput = world.status["goodput"]
    assert goodput["seconds"]["unattributed"] == pytest.approx(60, abs=0.1)
    total = sum(goodput["seconds"].values()) + goodput["unsettledSeconds"]
    assert total == pytest.approx(goodput["wallSeconds"])


def test_suspended_job_has_lost_nothing() -> None:
    """Suspension takes the pods of the attempt, and resumption brings it back."""
    world = settled()
    world.obj["spec"]["suspend"] = True
    world.rest()
    assert not world.objects[POD]
    world.obj["spec"]["suspend"] = False
    world.rest()
    run(world)
    assert world.status["state"] == "Running"
    assert (world.status["attempt"], world.status["incidents"]) == (1, [])


def queued() -> World:
    """A world in which a job of two hosts runs, by Kueue's leave."""
    recovery = {"pods": "Recreate"}
    world = World(obj=job_object(**OWN_PROGRAM, recovery=recovery, queue="research"))
    world.settle()
    give_quota(world, is_given=True)
    run(world)
    return world


def give_quota(world: World, *, is_given: bool) -> None:
    """Kueue gives quota, or takes it back."""
    (jobset,) = world.objects[JOB_SET].values()
    jobset["spec"]["suspend"] = not is_given
    world.settle()


def _delete_pods(world: World) -> None:
    for host in (0, 1):
        take(world, host)


def _suspend_jobs(world: World) -> None:
    for job in world.objects[JOB].values():
        job["spec"]["suspend"] = True


def _remove_pods(world: World) -> None:
    world.objects[POD].clear()


@pytest.mark.parametrize("seen", [None, _delete_pods, _suspend_jobs, _remove_pods])
def test_eviction_from_a_queue_is_no_loss(seen: Callable[[World], None] | None) -> None:
    """Whatever of it the watches show first; the attempt goes on when it has quota again."""
    world = queued()
    if seen:
        seen(world)
        world.step()
        assert world.deleted == []
    world.now_ms += 500
    give_quota(world, is_given=False)
    world.now_ms += GATHER_MS
    world.settle()
    assert world.status["state"] == "Queued"
    assert world.notes.count("Evicted") == 1
    give_quota(world, is_given=True)
    run(world)
    assert world.status["state"] == "Running"
    assert (world.status["attempt"], world.status["incidents"]) == (1, [])
    assert not any(budget["used"] for budget in world.status["budgets"].values())
    end(world, 0, 137)  # what is known of the eviction does not hide this
    assert lose(world)["cause"] == "process"


@pytest.mark.parametrize(("reason", "wait_ms"), [("", GATHER_MS), ("EvictionByEvictionAPI", 0)])
def test_pods_of_queued_jobs_are_lost_like_others(reason: str, wait_ms: int) -> None:
    """A moment later where it could have been Kueue, and with the same cause."""
    world = queued()
    take(world, 0, reason)
    world.step()
    assert bool(world.deleted) == (not wait_ms)
    world.now_ms += wait_ms
    world.step()
    incident = world.status["incidents"][-1]
    assert (incident["cause"], incident["slice"]) == ("preemption", 0)
    world.now_ms += 1_000
    world.settle()
    assert world.status["state"] == "Queued"
    assert [*world.objects[JOB_SET]] == ["j-2"]


def test_next_attempt_avoids_a_node_that_kills() -> None:
    """Two processes killed on one node make it suspect for the third attempt."""
    world = settled()
    for _ in range(2):
        world.now_ms += 60_000
        end(world, 0, 137)
        lose(world)
        world.rest()
        if world.status["attempt"] == 2:
            run(world)
    assert [node["name"] for node in world.status["nodes"]["suspected"]] == ["node"]
    annotations = world.objects[JOB_SET]["j-3"]["metadata"]["annotations"]
    assert annotations["tpujob.dev/avoided-nodes"] == "node"


@pytest.mark.parametrize("before", ["InPlace", "Recreate"])
def test_either_way_becomes_the_other(before: str) -> None:
    """A changed spec.recovery.pods makes a new attempt, and is no incident."""
    world = World(obj=job_object(**OWN_PROGRAM, recovery={"pods": before}))
    world.settle()
    run(world)
    after = "Recreate" if before == "InPlace" else "InPlace"
    world.obj["spec"]["recovery"] = {"pods": after}
    world.rest()
    run(world)
    assert world.status["incidents"] == []
    has_coordinator = "j-2-coordinator-0" in world.objects[JOB]
    assert has_coordinator == (after == "InPlace")
    assert "SpecChanged" in world.notes
