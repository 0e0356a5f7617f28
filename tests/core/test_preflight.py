"""A job is checked before it takes chips; what cannot be checked holds nobody up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.checks import DOES_NOT_FIT, FITS, INVALID, UNABLE, end
from tests.core.world import World, job_object
from tpujob_agent.preflight import Verdict
from tpujob_agent.protocol import ProtocolError
from tpujob_operator.core.kinds import JOB, JOB_SET, POD
from tpujob_operator.core.timetypes import TimeType

NAME = "j-preflight"


def asked(**spec: Any) -> World:
    """A job whose preflight is under way."""
    world = World(obj=job_object(preflight="Compile", **spec))
    world.settle()
    return world


def preflight_pod(world: World) -> dict[str, Any]:
    """Its pod."""
    return world.pod(NAME)


def answered(verdict: Verdict, **spec: Any) -> World:
    """A job whose preflight has ended so after a minute."""
    world = asked(**spec)
    world.now_ms += 60_000
    world.answer = verdict
    world.settle()
    return world


def training() -> World:
    """A job that has been checked and has its pods."""
    world = answered(FITS)
    world.run_pods()
    world.settle()
    return world


def end_job(world: World, message: str) -> None:
    """The Job controller gives up the preflight's Job."""
    failed = {"type": "Failed", "status": "True", "message": message}
    world.objects[JOB][NAME]["status"]["conditions"] = [failed]


def test_no_chip_is_asked_for_before_the_answer() -> None:
    """There is the preflight's Job alone; the job tells what it waits for."""
    world = asked()
    assert [*world.objects[JOB]] == [NAME]
    assert world.objects[JOB_SET] == {}
    assert world.status["state"] == "Queued"
    assert world.condition("Admitted") == ("False", "Checking")
    assert world.condition("Preflight") == ("False", "Checking")
    assert world.notes == ["Checking"]
    assert (world.step().requeue_after_s or 0) > 500, "its pod's news come by themselves"


def test_a_job_that_fits_starts() -> None:
    """Its wait was queued time, which counts for no deadline of the user's."""
    world = answered(FITS, activeDeadlineSeconds=30)
    assert [*world.objects[JOB_SET]] == ["j-1"]
    assert world.condition("Preflight") == ("True", "Fits")
    assert world.message("Preflight") == "The step fits: 9.50 of 15.75 GiB per chip."
    assert world.condition("Admitted") == ("True", "Admitted")
    assert world.condition("Failed")[0] == "False"
    assert world.status["state"] == "Pending"
    assert world.history.ledger.view(world.now_ms).by_type_ms[TimeType.QUEUED] >= 60_000
    assert "Fits" in world.notes


def test_without_it_nothing_is_checked() -> None:
    """And no condition speaks of it."""
    world = World()
    world.settle()
    assert NAME not in world.objects[JOB]
    assert "Preflight" not in {item["type"] for item in world.status["conditions"]}


@pytest.mark.parametrize(
    ("verdict", "reason", "words"),
    [
        (DOES_NOT_FIT, "DoesNotFit", "18.00 of 15.75 GiB per chip; the nearest that fits"),
        (INVALID, "InvalidSpec", "mesh.tensr"),
    ],
)
def test_a_job_that_cannot_run_fails(verdict: Verdict, reason: str, words: str) -> None:
    """Before it has taken a chip, and with what would fit."""
    world = answered(verdict)
    assert world.condition("Failed") == ("True", reason)
    assert world.condition("Preflight") == ("False", reason)
    assert words in world.message("Failed")
    assert "create the job again" in world.message("Failed")
    assert world.objects[JOB_SET] == {}
    assert NAME in world.objects[JOB], "its log is worth reading"
    assert world.notes.count(reason) == 1


def test_without_a_compiler_the_job_starts_unchecked() -> None:
    """An image that lacks it says so, and how to get it."""
    world = answered(UNABLE)
    assert [*world.objects[JOB_SET]] == ["j-1"]
    assert world.condition("Preflight") == ("False", "NotChecked")
    assert "the TPU compiler is missing" in world.message("Preflight")
    assert "NotChecked" in world.notes


def test_a_crash_is_told_and_the_job_starts() -> None:
    """In the last words of the container, when the Job controller has given up."""
    world = asked()
    end(preflight_pod(world), "Killed", "OOMKilled")
    world.settle()
    assert world.objects[JOB_SET] == {}, "there may be another try"
    end_job(world, "Job has reached the specified backoff limit")
    world.settle()
    assert [*world.objects[JOB_SET]] == ["j-1"]
    assert "OOMKilled: Killed" in world.message("Preflight")


def test_a_pod_that_is_seen_late_still_counts() -> None:
    """Watches are not ordered among each other: the Job may be seen to end before its pod."""
    world = asked()
    world.run_pods()
    end_job(world, "Pod failed with exit code 3")
    world.settle()
    assert world.condition("Preflight") == ("False", "Checking")
    end(preflight_pod(world), DOES_NOT_FIT.to_json())
    world.settle()
    assert world.condition("Failed") == ("True", "DoesNotFit")


def test_a_preflight_that_runs_out_of_time_is_told() -> None:
    """The Job controller ends it, and its pods are gone."""
    world = asked()
    world.objects[POD].clear()
    end_job(world, "Job was active longer than specified deadline")
    world.settle()
    assert world.condition("Preflight") == ("False", "NotChecked")
    assert "longer than specified deadline" in world.message("Preflight")
    assert [*world.objects[JOB_SET]] == ["j-1"]


def test_a_preflight_that_never_runs_holds_nobody_up() -> None:
    """Its pod finds no node: that is told at once, and after ten minutes the job starts."""
    world = asked()
    world.find_no_place()
    world.settle()
    assert "0/3 nodes are available" in world.message("Preflight")
    world.now_ms += 600_000
    world.settle()
    assert [*world.objects[JOB_SET]] == ["j-1"]
    assert world.condition("Preflight") == ("False", "NotChecked")
    assert "0/3 nodes are available" in world.message("Preflight")
    assert world.deleted == ["Job j-preflight"]


def test_a_preflight_that_runs_has_its_time() -> None:
    """A large step takes minutes to compile; beyond the Job's own deadline nobody waits."""
    world = asked()
    world.run_pods()
    world.now_ms += 3_500_000
    world.settle()
    assert world.condition("Preflight") == ("False", "Checking")
    world.now_ms += 200_000
    world.settle()
    assert world.condition("Preflight") == ("False", "NotChecked")
    assert world.deleted == ["Job j-preflight"]
    assert [*world.objects[JOB_SET]] == ["j-1"]


@pytest.mark.parametrize("where", ["refusals", "unmade"])
def test_a_preflight_that_is_refused_says_why(where: str) -> None:
    """By a quota or a policy, whether it is the Job or its pod."""
    world = asked()
    world.objects[POD].clear()
    if where == "refusals":
        world.objects[JOB].clear()
        world.refusals = ("Job j-preflight cannot be made: exceeded quota",)
    else:
        world.unmade = {NAME: "exceeded quota"}
    world.step()
    assert "exceeded quota" in world.message("Preflight")


def test_a_changed_spec_is_checked_anew() -> None:
    """Also while it is being checked; the answer about the earlier one does not count."""
    world = asked()
    world.obj["spec"]["slices"] = 1
    end(preflight_pod(world), DOES_NOT_FIT.to_json())
    world.settle()
    assert world.deleted == ["Job j-preflight"]
    assert world.condition("Preflight") == ("False", "Checking")
    world.answer = FITS
    world.settle()
    assert [*world.objects[JOB_SET]] == ["j-1"]


def test_what_the_answer_does_not_depend_on_is_not_checked_anew() -> None:
    """Such as a spare slice: it makes another attempt at once."""
    world = training()
    world.answer = None
    world.obj["spec"]["spares"] = 1
    world.settle()
    assert [*world.objects[JOB_SET]] == ["j-2"]
    assert world.condition("Preflight") == ("True", "Fits")


def test_a_running_job_goes_on_until_its_change_is_known_to_fit() -> None:
    """Its pods stay while the compiler is asked; then it saves and makes another attempt."""
    world = training()
    world.answer = None
    world.obj["spec"]["topology"] = "1x1"
    world.settle()
    assert [*world.objects[JOB_SET]] == ["j-1"]
    assert world.condition("Preflight") == ("False", "Checking")
    assert world.condition("Admitted") == ("True", "Admitted")
    world.answer = FITS
    world.settle()
    assert [*world.objects[JOB_SET]] == ["j-2"]
    assert world.condition("Preflight") == ("True", "Fits")


def test_a_change_that_does_not_fit_is_not_begun() -> None:
    """The job goes on as it was made; changed back, all is well without another check."""
    world = training()
    world.answer = DOES_NOT_FIT
    world.obj["spec"]["topology"] = "1x1"
    world.settle()
    assert [*world.objects[JOB_SET]] == ["j-1"]
    assert world.condition("Stalled") == ("True", "DoesNotFit")
    assert "goes on as it was made" in world.message("Stalled")
    assert world.condition("Failed")[0] == "False"
    world.answer = None
    world.obj["spec"]["topology"] = "2x2"
    world.settle()
    assert world.condition("Stalled")[0] == "False"
    assert world.condition("Preflight") == ("True", "Fits")
    assert [*world.objects[JOB_SET]] == ["j-1"]


def test_a_suspended_job_is_checked_when_it_is_resumed() -> None:
    """Nothing of it runs before."""
    world = asked(suspend=True)
    assert world.objects[JOB] == {}
    assert world.status["state"] == "Suspended"
    world.obj["spec"]["suspend"] = False
    world.answer = FITS
    world.settle()
    assert [*world.objects[JOB_SET]] == ["j-1"]


def test_then_it_waits_in_its_queue() -> None:
    """Kueue is asked for quota when the job is known to fit."""
    world = answered(FITS, queue="research")
    assert world.objects[JOB_SET]["j-1"]["spec"]["suspend"] is True
    assert world.status["state"] == "Queued"
    assert world.condition("Admitted") == ("False", "Queued")


def test_a_restart_of_the_operator_asks_nothing_again() -> None:
    """The answer is in the status, like the time since when it is waited for."""
    world = training()
    del world.objects[JOB][NAME]
    world.answer = None
    world.restart_operator()
    world.settle()
    assert NAME not in world.objects[JOB]
    assert world.condition("Preflight") == ("True", "Fits")
    world = asked()
    since = world.memory.checks
    world.restart_operator()
    world.now_ms += 1_000
    world.settle()
    assert world.memory.checks == since


def test_the_job_of_a_namesake_is_not_listened_to() -> None:
    """The garbage collector removes it, and then the job's own is made."""
    world = asked()
    world.objects[JOB][NAME]["metadata"]["ownerReferences"][0]["uid"] = "another"
    world.answer = DOES_NOT_FIT
    world.settle()
    assert world.condition("Preflight") == ("False", "Checking")
    assert world.deleted == []
    world.objects[POD].clear()
    del world.objects[JOB][NAME]
    world.answer = FITS
    world.settle()
    assert world.condition("Preflight") == ("True", "Fits")


def test_the_end_of_a_job_ends_its_preflight() -> None:
    """Nobody waits for the answer any more."""
    world = training()
    world.answer = None
    world.obj["spec"]["topology"] = "1x1"
    world.settle()
    world.end_jobset("Completed")
    world.deleted.clear()
    world.settle()
    assert world.condition("Succeeded")[0] == "True"
    assert world.deleted == ["Job j-preflight"]


def test_answers_are_short_and_checked() -> None:
    """Kubernetes keeps 4,096 bytes; what is no answer is told as such."""
    long = Verdict(FITS.answer, '"ä\n' * 9_000)
    assert len(long.to_json().encode()) < 4_096
    assert Verdict.from_json(long.to_json()).answer == "Fits"
    assert Verdict.from_json(FITS.to_json()) == FITS
    for text in ("", "[]", "{}", '{"answer": "Perhaps", "message": ""}', "Traceback …"):
        with pytest.raises(ProtocolError, match="not a verdict"):
            Verdict.from_json(text)
