"""What the operator decides, case by case."""

import pytest

from tests.core.histories import event, loss, progress, start
from tests.core.stories import settled, told, training
from tests.core.world import World, job_object
from tpujob_agent.protocol import EventKind
from tpujob_operator.core.kinds import JOB_SET, POD
from tpujob_operator.core.plan import Create
from tpujob_operator.core.timetypes import TimeType


def test_new_job_is_made_in_one_pass() -> None:
    """The first pass writes the attempt down and makes Secret, Service and JobSet."""
    world = World()
    plan = world.step()
    assert plan.status is not None
    assert plan.status["attempt"] == 1
    assert [action.manifest["kind"] for action in plan.actions if isinstance(action, Create)] == [
        "Secret",
        "Service",
        "JobSet",
    ]


def test_second_plan_is_empty() -> None:
    """Once made, nothing is left to do: the plan is empty, and stays so as time passes."""
    world = settled()
    world.restart_operator()
    world.settle()
    for _ in range(5):
        world.now_ms += 60_000
        assert world.step().is_empty
    assert world.condition("Admitted") == ("True", "Admitted")


def test_training_job_is_ready() -> None:
    """A world that takes steps makes the job Ready and Running."""
    world = training()
    assert world.condition("Ready") == ("True", "Training")
    assert world.status["state"] == "Running"
    assert world.status["slices"] == {"wanted": 2, "running": 2, "spare": 0}


def test_steps_alone_are_written_now_and_then() -> None:
    """Progress within two seconds of the last write waits; later it is written."""
    world = training()
    world.now_ms += 3_000
    world.readings.append(told(progress(world.now_ms, 1, 5), first=20))
    assert world.step().status is not None
    world.now_ms += 500
    world.readings.append(told(progress(world.now_ms, 6, 6), first=21))
    plan = world.step()
    assert plan.status is None
    assert plan.requeue_after_s == pytest.approx(1.5)
    world.now_ms += 1_500
    plan = world.step()
    assert plan.status is not None
    assert plan.status["step"] == 6


def test_loss_shows_at_once_and_ends_with_the_next_step() -> None:
    """A loss makes the job Recovering until a step is finished again."""
    world = training()
    at = world.now_ms
    world.readings.append(told(progress(at - 500, 1, 5), loss(at, at - 100, step=5), first=20))
    world.step()
    assert world.condition("Restarting") == ("True", "ProcessLost")
    assert world.status["state"] == "Recovering"
    assert world.status["incidents"][0]["cause"] == "process"
    world.now_ms += 2_000
    again = start(world.now_ms, generation=2, restored=4)
    world.readings.append(told(*again, progress(world.now_ms + 100, 5, 5, generation=2), first=30))
    world.now_ms += 200
    world.step()
    assert world.condition("Restarting") == ("False", "Recovered")
    assert world.status["incidents"][0]["recoveredAfterSeconds"] > 0


def _train_on(world: World, *slices: int) -> None:
    """Another generation trains on these single-host slices."""
    begun = start(world.now_ms, generation=2)
    for seen in begun:
        if seen.kind is EventKind.GENERATION_STARTED:
            seen.data.update(hosts=len(slices), slices=list(slices), wantedSlices=2)
    world.readings.append(told(*begun, first=30))
    world.now_ms += 5_000
    world.settle()


def test_a_smaller_world_is_degraded() -> None:
    """The condition says how many slices train, and ends when the world has grown."""
    world = training(elastic={"minSlices": 1})
    assert world.condition("Degraded")[0] == "False"
    _train_on(world, 1)
    assert world.condition("Degraded") == ("True", "HostsMissing")
    degraded = next(c for c in world.status["conditions"] if c["type"] == "Degraded")
    assert "1 of 2 slices" in degraded["message"]
    assert world.status["slices"] == {"wanted": 2, "running": 1, "spare": 1}


def test_spares_are_counted_and_waited_for_by_nobody() -> None:
    """A spare that finds no node is no reason to wait, or to say that nothing goes on."""
    world = World(obj=job_object(spares=1))
    world.settle()
    world.run_pods()
    spare = world.pod("j-1-slice-2")
    del spare["spec"]["nodeName"]
    spare["status"] = {
        "phase": "Pending",
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/3 nodes are available.",
            }
        ],
    }
    world.now_ms += 5_000
    world.settle()
    assert world.history.ledger.bound
    assert world.condition("Progressing") == ("False", "Unschedulable")
    _train_on(world, 0, 1)
    assert world.condition("Progressing")[0] == "True"
    assert world.status["slices"] == {"wanted": 2, "running": 2, "spare": 0}
    world.run_pods()
    world.settle()
    assert world.status["slices"] == {"wanted": 2, "running": 2, "spare": 1}


def test_a_changed_spec_makes_a_new_attempt() -> None:
    """The old attempt leaves, which costs no budget, before one of the new spec is made."""
    world = training()
    world.obj["spec"]["slices"] = 1
    world.step()
    assert world.deleted == ["JobSet j-1"]
    assert world.notes[-1] == "SpecChanged"
    at = world.now_ms + 900
    saved = event(at - 200, EventKind.COMMITTED, step=7)
    gone = loss(at, at - 100, cause="preemption")
    world.readings.append(told(progress(at - 500, 1, 7), saved, gone, first=20))
    world.now_ms += 1_000
    world.settle()
    assert world.status["attempt"] == 2
    assert list(world.objects[JOB_SET]) == ["j-2"]
    assert world.deleted == ["JobSet j-1"]
    assert world.status["checkpoint"]["step"] == 7
    assert not world.status.get("incidents")
    assert world.history.incidents.used == {}
    world.restart_operator()
    world.settle()
    assert list(world.objects[JOB_SET]) == ["j-2"]


def test_what_shapes_no_pod_makes_no_attempt() -> None:
    """Budgets, limits and times are changed without touching a pod."""
    world = training()
    world.obj["spec"].update(
        recovery={"budgets": {"process": 1}}, health={"hang": {"factor": 9}}, suspend=False
    )
    world.settle()
    assert world.status["attempt"] == 1
    assert world.deleted == []


def test_a_suspended_job_says_whether_it_still_has_pods() -> None:
    """Their chips are taken until the last one has ended."""
    world = settled(suspend=False)
    world.obj["spec"]["suspend"] = True
    world.step()
    assert "last pods are still ending; set spec.suspend" in world.message("Suspended")
    world.settle()
    assert "has no pods; set spec.suspend" in world.message("Suspended")
    assert not world.objects[POD]


def test_a_suspended_job_changes_without_running() -> None:
    """Its next attempt is suspended too, and the time is no teardown."""
    world = training()
    world.obj["spec"]["suspend"] = True
    world.settle()
    world.obj["spec"]["slices"] = 1
    world.settle()
    assert world.status["attempt"] == 2
    assert world.objects[JOB_SET]["j-2"]["spec"]["suspend"] is True
    assert world.history.ledger.type_now is TimeType.SUSPENDED


@pytest.mark.parametrize("how", ["deleted", "failed", "vanished"])
def test_lost_pod_costs_its_slice_once(how: str) -> None:
    """However a pod is lost, its slice's Job is deleted, exactly once."""
    world = settled()
    pod = world.pod("j-1-slice-1")
    if how == "deleted":
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    elif how == "failed":
        pod["status"] = {"phase": "Failed", "reason": "Evicted", "message": "no space"}
    else:
        world.remove(POD, pod["metadata"]["name"], pod["metadata"]["uid"])
    world.settle()
    assert world.deleted == ["Job j-1-slice-1"]
    assert world.notes.count("SliceRestarted") == 1
    assert len(world.objects[POD]) == 3


def test_pod_lost_while_the_operator_was_away_costs_its_slice() -> None:
    """The Job controller's count tells of a loss that nobody has seen."""
    world = settled()
    pod = world.pod("j-1-slice-0")
    world.remove(POD, pod["metadata"]["name"], pod["metadata"]["uid"])
    world.restart_operator()
    world.settle()
    assert world.deleted == ["Job j-1-slice-0"]


@pytest.mark.parametrize("status_code", [0, 403])
def test_slice_that_is_lost_again_and_again_is_replaced_ever_more_slowly(status_code: int) -> None:
    """Pods that fail at once do not make a hot loop, even if no status can be written."""
    world = settled()
    world.status_code = status_code
    for _ in range(200):
        for pod in world.objects[POD].values():
            if "slice-1" in pod["metadata"]["name"]:
                pod["status"] = {"phase": "Failed"}
        world.step()
        world.controllers()
        world.now_ms += 1_000
    assert 5 <= len(world.deleted) <= 12
    assert set(world.deleted) == {"Job j-1-slice-1"}


def test_slice_that_the_job_controller_has_made_whole_stays() -> None:
    """It may be faster than an operator that holds back; nothing is missing then."""
    world = settled()
    lost = world.pod("j-1-slice-1")
    world.remove(POD, lost["metadata"]["name"], lost["metadata"]["uid"])
    world.step()
    world.controllers()
    lost = world.pod("j-1-slice-1")
    world.run_pods()
    world.remove(POD, lost["metadata"]["name"], lost["metadata"]["uid"])
    world.step()
    world.remake_pod("j-1-slice-1")
    world.run_pods()
    world.now_ms += 60_000
    world.settle()
    # Nor does what was lost then make a restarted container cost its slice.
    world.pod("j-1-slice-1")["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    world.settle()
    assert world.deleted == ["Job j-1-slice-1"]


def test_pods_that_are_meant_to_go_are_not_lost() -> None:
    """Suspension and the end of a job remove pods; no slice is replaced for that."""
    world = training()
    world.obj["spec"]["suspend"] = True
    world.settle()
    assert world.objects[POD] == {}
    world.obj["spec"]["suspend"] = False
    world.settle()
    world.readings.append(told(event(world.now_ms, EventKind.FINISHED, step=100), epoch="f"))
    world.pod("j-1-slice-0")["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.settle()
    assert world.deleted == []
    assert world.condition("Succeeded") == ("True", "Completed")


def test_coordinators_that_forget_do_not_extend_a_budget() -> None:
    """A new coordinator does not know what the one before has counted; the status does."""
    world = training(recovery={"budgets": {"process": 1}})
    for generation in (2, 3):
        at = world.now_ms
        ended = loss(at, at - 100, generation=generation - 1, message="killed by signal 9")
        again = start(at + 100, generation=generation)
        world.readings.append(told(ended, *again, first=1, epoch=f"epoch{generation}"))
        world.now_ms += 5_000
        world.settle()
    assert world.condition("Failed") == ("True", "BudgetSpent")
    message = next(c["message"] for c in world.status["conditions"] if c["type"] == "Failed")
    assert "2 restarts, 1 allowed" in message
    assert "killed by signal 9" in message


def test_spent_budget_fails_the_job_with_advice() -> None:
    """GAVE_UP ends the job: Failed, with the coordinator's words and what to do."""
    world = training()
    words = "budget userError spent: exit code 1: no such file"
    gave_up = event(world.now_ms, EventKind.GAVE_UP, cause="userError", message=words)
    world.readings.append(told(gave_up, first=20))
    world.settle()
    assert world.condition("Failed") == ("True", "BudgetSpent")
    assert world.condition("Stalled")[0] == "True"
    assert world.condition("Admitted")[0] == "True"
    failed = next(c for c in world.status["conditions"] if c["type"] == "Failed")
    assert words in failed["message"]
    assert "Correct the program" in failed["message"]
    assert world.objects[JOB_SET] == {}
    assert "finishedAt" in world.status


def test_invalid_spec_fails_before_anything_is_made() -> None:
    """What admission let through is refused in words, and no object is made."""
    world = World(obj=job_object(topology="3x5"))
    world.settle()
    assert world.condition("Failed") == ("True", "InvalidSpec")
    assert world.objects[JOB_SET] == {}
    message = next(c["message"] for c in world.status["conditions"] if c["type"] == "Failed")
    assert "nearest are" in message


def test_spec_that_becomes_invalid_does_not_end_a_running_job() -> None:
    """A job that runs is not stopped because this operator cannot read its spec."""
    world = training()
    world.obj["spec"]["topology"] = "3x5"
    world.settle()
    assert world.condition("Stalled") == ("True", "InvalidSpec")
    assert world.condition("Failed")[0] == "False"
    assert len(world.objects[POD]) == 3


def test_missing_jobset_is_told_once_and_looked_for_again() -> None:
    """Without JobSet nothing is made, one event says so, and the operator comes back."""
    world = World(has_jobset=False)
    world.settle()
    world.now_ms += 60_000
    plan = world.settle()
    assert world.condition("Stalled") == ("True", "JobSetMissing")
    assert world.notes.count("JobSetMissing") == 1
    assert plan.requeue_after_s == pytest.approx(5.0)
    world.has_jobset = True
    world.settle()
    assert "j-1" in world.objects[JOB_SET]
    assert world.condition("Stalled")[0] == "False"


def test_failed_jobset_is_replaced_after_it_is_gone() -> None:
    """The next attempt begins when no pod of the failed one is left."""
    world = training()
    world.end_jobset("Failed", "coordinator failed")
    plan = world.step()
    assert plan.status is not None
    assert plan.status["attempt"] == 2
    assert list(world.objects[JOB_SET]) == []
    world.now_ms += 10_000
    world.step()
    assert list(world.objects[JOB_SET]) == [], "pods of attempt 1 are still there"
    world.controllers()
    world.settle()
    assert list(world.objects[JOB_SET]) == ["j-2"]
    assert world.live_attempts() == {"2"}


def test_a_failed_attempt_is_an_incident_and_one_event() -> None:
    """Status names it with rung R3 and the JobSet's words; the events name it once."""
    world = training()
    world.end_jobset("Failed", "coordinator failed")
    plan = world.step()
    assert plan.status is not None
    incident = plan.status["incidents"][-1]
    assert (incident["cause"], incident["rung"]) == ("coordinator", "R3")
    assert incident["message"] == "coordinator failed"
    assert [note.reason for note in plan.notes] == ["AttemptFailed"]
    assert plan.status["state"] == "Recovering"


def test_attempts_without_a_checkpoint_end_the_job() -> None:
    """JobSets that fail again and again stop the job after the budget ``noProgress``."""
    world = settled(recovery={"budgets": {"noProgress": 2}})
    for _ in range(3):
        world.end_jobset("Failed", "broken")
        world.settle()
        world.now_ms += 600_000
        world.settle()
    assert world.condition("Failed") == ("True", "BudgetSpent")
    assert world.objects[JOB_SET] == {}
    assert world.status["attempt"] == 3
