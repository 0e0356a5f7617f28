"""A job's programs are compiled while it waits; whatever becomes of that, the job is as it was."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.checks import DOES_NOT_FIT, FITS, UNABLE
from tests.core.histories import start
from tests.core.stories import told
from tests.core.world import World, job_object
from tpujob_agent.preflight import Verdict
from tpujob_operator.core.kinds import JOB, JOB_SET

NAME = "j-programs"
IN_BUCKET = {"directory": "gs://bucket/j"}
KEPT = {"config": {"checkpoint": {"keepPrograms": True}}}
ON_CPUS = {**KEPT, "env": [{"name": "JAX_PLATFORMS", "value": "cpu"}]}


def answered(verdict: Verdict = FITS, **spec: Any) -> World:
    """A job whose preflight has said so."""
    obj = job_object(**{"preflight": "Compile", "checkpoint": IN_BUCKET, "trainer": KEPT, **spec})
    world = World(obj=obj, answer=verdict)
    world.settle()
    return world


def train(world: World, generation: int = 1) -> None:
    """The job's first step is done."""
    world.run_pods()
    world.settle()
    world.readings.append(told(*start(world.now_ms, generation), epoch=str(generation)))
    world.now_ms += 5_000
    world.settle()


def end_ahead(world: World, kind: str) -> None:
    """The Job has ended."""
    world.objects[JOB][NAME]["status"]["conditions"] = [{"type": kind, "status": "True"}]


def test_it_is_compiled_while_the_job_waits() -> None:
    """In its queue here: the answer comes first, and lets the job queue at once."""
    world = World(
        obj=job_object(preflight="Compile", checkpoint=IN_BUCKET, trainer=KEPT, queue="research")
    )
    world.settle()
    assert NAME not in world.objects[JOB]
    world.answer = FITS
    world.settle()
    assert {NAME, "j-preflight"} <= {*world.objects[JOB]}
    assert world.objects[JOB_SET]["j-1"]["spec"]["suspend"] is True
    assert world.status["state"] == "Queued"


@pytest.mark.parametrize(
    ("verdict", "spec", "is_made"),
    [
        (FITS, {}, True),
        (DOES_NOT_FIT, {}, False),
        (UNABLE, {}, False),  # for the want of a compiler
        (UNABLE, {"trainer": ON_CPUS}, True),  # which CPUs have
        (FITS, {"trainer": {"config": {}}}, False),  # nobody has asked for it
        (FITS, {"trainer": {"config": {"checkpoint": {"keepPrograms": False}}}}, False),
        (FITS, {"checkpoint": {"directory": "/on/no/volume"}}, False),
        (FITS, {"preflight": "None"}, False),
    ],
)
def test_only_where_it_can_help(verdict: Verdict, spec: dict[str, Any], is_made: bool) -> None:
    """There is a compiler, and a place where the job will look."""
    assert (NAME in answered(verdict, **spec).objects[JOB]) is is_made


def test_it_is_given_up_when_the_job_trains_without_it() -> None:
    """It would come too late; one that has ended keeps its log."""
    world = answered()
    train(world)
    assert world.deleted == [f"Job {NAME}"]
    world = answered()
    end_ahead(world, "Complete")
    train(world)
    assert world.deleted == []


def test_nothing_of_it_is_told_or_tried_again() -> None:
    """It may fail, or be removed: the job goes its way."""
    world = answered()
    end_ahead(world, "Failed")
    before = world.status
    assert world.settle().is_empty
    assert world.status == before
    job = world.objects[JOB][NAME]
    world.remove(JOB, NAME, job["metadata"]["uid"])
    world.restart_operator()
    world.settle()
    assert NAME not in world.objects[JOB]


def test_an_operator_that_dies_just_then_starts_the_job() -> None:
    """Once the answer is written nothing but the job itself is owed."""
    world = answered(Verdict(FITS.answer, ""))
    crashed = World(obj=job_object(preflight="Compile", checkpoint=IN_BUCKET, trainer=KEPT))
    crashed.settle()
    crashed.answer = FITS
    crashed.controllers()
    crashed.step(crash_after=1)
    crashed.settle()
    assert {*world.objects[JOB_SET]} == {*crashed.objects[JOB_SET]} == {"j-1"}
    assert NAME not in crashed.objects[JOB]


def test_a_changed_spec_is_compiled_anew() -> None:
    """What compiles for the earlier one goes, so that its name is free."""
    world = answered()
    end_ahead(world, "Complete")
    train(world)
    first = world.objects[JOB][NAME]["metadata"]["uid"]
    world.answer = None
    world.obj["spec"]["topology"] = "1x1"
    world.settle()
    assert world.deleted == ["Job j-preflight", f"Job {NAME}"]
    world.answer = FITS
    world.settle()
    assert world.objects[JOB][NAME]["metadata"]["uid"] != first
    train(world, 2)
    assert world.deleted[-1] == f"Job {NAME}"


def test_the_end_of_a_job_ends_it() -> None:
    """Nobody will load what it makes."""
    world = answered()
    world.obj["spec"]["activeDeadlineSeconds"] = 1
    world.run_pods()
    world.settle()
    world.now_ms += 10_000
    world.settle()
    assert world.condition("Failed") == ("True", "DeadlineExceeded")
    assert f"Job {NAME}" in world.deleted


def test_the_job_of_a_namesake_is_left_alone() -> None:
    """The garbage collector removes it."""
    world = answered()
    world.objects[JOB][NAME]["metadata"]["ownerReferences"][0]["uid"] = "another"
    train(world)
    assert world.deleted == []
