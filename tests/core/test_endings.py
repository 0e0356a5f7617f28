"""What the operator decides about the end of jobs, and about what is not in order."""

from typing import Any

import pytest

from tests.core.histories import event, progress
from tests.core.stories import settled, told, training
from tests.core.world import START_MS, World
from tpujob_agent.protocol import EventKind
from tpujob_operator.core.kinds import JOB, JOB_SET, POD
from tpujob_operator.core.plan import Create


def test_deadline_does_not_count_suspended_time() -> None:
    """A suspended job does not run into its deadline; an active one does."""
    world = training(activeDeadlineSeconds=100, suspend=True)
    world.now_ms += 3_600_000
    world.settle()
    assert world.condition("Failed")[0] == "False"
    world.obj["spec"]["suspend"] = False
    world.settle()
    world.now_ms += 101_000
    world.settle()
    assert world.condition("Failed") == ("True", "DeadlineExceeded")


def test_succeeded_job_stays_so_whatever_happens_to_its_children() -> None:
    """A finished job never runs again."""
    world = training()
    world.end_jobset("Completed")
    world.settle()
    before = dict(world.status)
    for kind in (POD, JOB, JOB_SET):
        world.objects[kind].clear()
    world.now_ms += 3_600_000
    assert world.settle().is_empty
    assert world.status == before
    assert world.status["goodput"]["wallSeconds"] * 1000 == pytest.approx(
        sum(world.status["goodput"]["seconds"].values()) * 1000
    )


def test_ttl_deletes_the_job_on_time() -> None:
    """``ttlSecondsAfterFinished`` is kept to the second."""
    world = settled(ttlSecondsAfterFinished=60)
    world.end_jobset("Completed")
    plan = world.settle()
    assert plan.requeue_after_s == pytest.approx(60)
    world.now_ms += 60_000
    world.step()
    assert world.deleted == ["TPUTrainingJob j"]
    assert world.step().is_empty


def test_coordinator_that_does_not_end_is_ended() -> None:
    """A JobSet that stays after success is removed after half a minute."""
    world = training()
    world.readings.append(told(event(world.now_ms, EventKind.FINISHED, step=100), first=20))
    plan = world.settle()
    assert plan.requeue_after_s == pytest.approx(30)
    world.now_ms += 30_000
    world.step()
    assert world.deleted == ["JobSet j-1"]


@pytest.mark.parametrize(
    ("how", "state"),
    [("finished", "Succeeded"), ("gaveUp", "Failed")],
)
def test_a_job_that_has_ended_stays_so_when_its_status_is_lost(how: str, state: str) -> None:
    """An annotation says so, though neither status nor JobSets are left."""
    world = training()
    data: dict[str, Any] = {"step": 9, "cause": "process", "message": "no more"}
    world.readings.append(told(event(world.now_ms, EventKind(how), **data), first=20))
    world.settle()
    world.now_ms += 60_000
    world.settle()
    for table in world.objects.values():
        table.clear()
    del world.obj["status"]
    world.restart_operator()
    world.settle()
    assert world.status["state"] == state
    assert not world.objects[JOB_SET]
    assert "before its status was lost" in world.message(state)


def test_a_copy_of_a_job_that_has_ended_says_why_it_does_not_run() -> None:
    """Whether it was restored from a backup or copied on purpose, only its user knows."""
    world = training()
    world.end_jobset("Completed")
    world.settle()
    copied = World()
    copied.obj["metadata"] |= {"uid": "other"}
    copied.obj["metadata"]["annotations"] = world.obj["metadata"]["annotations"]
    copied.settle()
    assert copied.condition("Stalled") == ("True", "EndedBefore")
    assert "remove the annotation tpujob.dev/ended" in copied.message("Stalled")
    assert not copied.objects[JOB_SET]
    del copied.obj["metadata"]["annotations"]
    copied.settle()
    assert copied.objects[JOB_SET]


def test_a_running_job_goes_on_when_its_status_is_lost() -> None:
    """Its attempt is that of its JobSet: nothing is torn down, and what happened is read again."""
    world = training()
    world.end_jobset("Failed", "broken")
    world.rest()
    world.run_pods()
    world.settle()
    (jobset,) = world.objects[JOB_SET]
    assert jobset == "j-2"
    del world.obj["status"]
    world.restart_operator()
    world.settle()
    assert (list(world.objects[JOB_SET]), world.status["attempt"]) == (["j-2"], 2)
    assert "JobSet j-2" not in world.deleted


def test_a_jobset_without_jobs_is_told() -> None:
    """The JobSet controller is down: the job says so after a minute, and recovers by itself."""
    world = World()
    world.step()
    assert world.step().requeue_after_s is not None
    world.now_ms += 59_000
    world.step()
    assert world.condition("Stalled")[0] == "False"
    world.now_ms += 2_000
    world.step()
    assert world.condition("Stalled") == ("True", "JobSetSilent")
    assert "JobSet j-1 has had no Jobs" in world.message("Stalled")
    world.settle()
    assert world.condition("Stalled")[0] == "False"


@pytest.mark.parametrize(
    ("waiting", "reason", "advice"),
    [
        ("ErrImagePull", "ImageUnavailable", "Check the image's name"),
        ("CreateContainerConfigError", "ContainerConfigError", "Correct the cause"),
        ("CrashLoopBackOff", "CrashLoop", "kubectl logs --previous j-1-slice-0"),
    ],
)
def test_container_trouble_is_told_and_forgotten(waiting: str, reason: str, advice: str) -> None:
    """Stalled carries the kubelet's words while they hold, and what to do."""
    world = settled()
    state = {"waiting": {"reason": waiting, "message": "the kubelet's words"}}
    pod = world.pod("j-1-slice-0")
    pod["status"]["containerStatuses"] = [{"state": state}]
    world.settle()
    assert world.condition("Stalled") == ("True", reason)
    told = next(c["message"] for c in world.status["conditions"] if c["type"] == "Stalled")
    assert f"{waiting}: the kubelet's words. " in told
    assert advice in told
    pod["status"]["containerStatuses"] = [{"state": {"running": {}}}]
    world.settle()
    assert world.condition("Stalled") == ("False", "NotStalled")


def test_refusals_are_told() -> None:
    """What the API server refuses is in the Stalled condition, word for word."""
    world = World(refusals=("Service j-coordinator cannot be made: exceeded quota",))
    world.step()
    assert world.condition("Stalled") == ("True", "Refused")


def test_secret_and_service_are_repaired_now_and_then() -> None:
    """Objects that are not watched are created again every ten minutes, the JobSet never."""
    world = settled()
    world.now_ms += 601_000
    plan = world.step()
    kinds = [action.manifest["kind"] for action in plan.actions if isinstance(action, Create)]
    assert kinds == ["Secret", "Service"]
    assert world.step().is_empty


def test_deleted_job_is_left_alone() -> None:
    """A job on its way out gets nothing made, written or deleted."""
    world = World()
    world.obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert world.step().is_empty
    assert world.now_ms == START_MS


def test_damaged_clock_does_not_lose_time() -> None:
    """A clock that jumps back neither breaks a pass nor makes types disagree with wall time."""
    world = training()
    world.now_ms -= 3_600_000
    world.readings.append(told(progress(world.now_ms, 1, 2), first=20))
    world.settle()
    seconds = world.status["goodput"]
    assert sum(seconds["seconds"].values()) + seconds["unsettledSeconds"] == pytest.approx(
        seconds["wallSeconds"]
    )
