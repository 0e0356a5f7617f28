"""Writes that fail, and writes that happen although their answer is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.core.modelapi import Fault, ModelApi, run
from tests.core.stories import settled, training
from tests.core.world import World
from tpujob_operator.core.decide import decide
from tpujob_operator.core.kinds import JOB, JOB_SET
from tpujob_operator.core.plan import Plan
from tpujob_operator.shell.executor import Executor, Result
from tpujob_operator.shell.statuswriter import Outcome

LOST = Fault(0, is_done=True)
LOST_UNSEEN = Fault(503, is_done=True, is_blind=True)
INVALID = Fault(422)
FORBIDDEN = Fault(403)


def _execute(
    world: World, plan: Plan, snapshot: Any, before_write: Callable[[], None] | None = None
) -> Result:
    """Carry out a plan that was made of an earlier snapshot."""

    class Interrupted(ModelApi):
        def _create(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
            if before_write is not None and manifest["kind"] == "Service":
                before_write()
            return super()._create(manifest)

    api = Interrupted(world, None, {})
    return run(Executor(api, api, "model", api.tell).execute(snapshot, plan, world.now_ms))


def _by_another(world: World, **status: Any) -> None:
    """Another operator writes the job's status."""
    meta = world.obj["metadata"]
    version = str(int(meta["resourceVersion"]) + 1)
    world.obj = {
        **world.obj,
        "metadata": {**meta, "resourceVersion": version},
        "status": {**world.status, **status},
    }


@pytest.mark.parametrize("fault", [LOST, LOST_UNSEEN])
def test_failed_attempt_is_counted_though_the_answer_was_lost(fault: Fault) -> None:
    """The incident, its budget and the back-off are in the status that nobody heard of."""
    world = training()
    world.end_jobset("Failed", "broken")
    world.step(faults={0: fault})
    assert world.status["attempt"] == 2
    world.settle()
    assert world.status["restarts"] == 1
    assert [item["message"] for item in world.status["incidents"]] == ["broken"]
    assert world.memory.next_attempt_ms > world.now_ms
    assert not world.objects[JOB_SET], "the back-off has not ended"
    world.rest()
    assert list(world.objects[JOB_SET]) == ["j-2"]
    assert world.status["restarts"] == 1


@pytest.mark.parametrize("code", [0, 409, 500])
def test_failed_attempt_is_counted_once_if_the_status_was_not_written(code: int) -> None:
    """Nothing is done before the attempt is written down, and nothing is counted twice."""
    world = training()
    world.end_jobset("Failed", "broken")
    world.step(faults={0: Fault(code)})
    assert world.status["attempt"] == 1
    assert list(world.objects[JOB_SET]) == ["j-1"]
    world.rest()
    assert world.status["restarts"] == 1
    assert world.notes.count("AttemptFailed") == 1


def test_status_of_another_writer_is_not_overwritten() -> None:
    """A decision on an older version is dropped whole: no status, no action, no event."""
    world = training()
    world.end_jobset("Failed", "broken")
    snapshot = world.snapshot()
    plan = decide(snapshot, world.now_ms)
    _by_another(world, attempt=5)
    before, notes = dict(world.obj), list(world.notes)
    result = _execute(world, plan, snapshot)
    assert result.status.outcome is Outcome.OUTDATED
    assert not result.is_committed
    assert world.obj == before
    assert world.notes == notes
    assert list(world.objects[JOB_SET]) == ["j-1"]


@pytest.mark.parametrize(
    "change",
    [
        lambda world: _by_another(world, attempt=2),
        lambda world: world.obj["metadata"].update(uid="another"),
        lambda world: world.obj["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"),
    ],
)
def test_no_jobset_is_made_that_the_stored_status_does_not_name(
    change: Callable[[World], None],
) -> None:
    """An operator that was held up makes no JobSet for an attempt that is over."""
    world = World()
    snapshot = world.snapshot()
    plan = decide(snapshot, world.now_ms)
    result = _execute(world, plan, snapshot, lambda: change(world))
    assert result.is_outdated
    assert not world.objects[JOB_SET]
    assert "Created" not in world.notes


def test_jobset_of_an_attempt_that_is_over_is_removed() -> None:
    """What a held-up operator has made after all does not stay beside the present attempt."""
    world = training()
    stray = {**world.objects[JOB_SET]["j-1"]}
    labels = {**stray["metadata"]["labels"], "tpujob.dev/attempt": "7"}
    stray["metadata"] = {**stray["metadata"], "name": "j-7", "uid": "stray", "labels": labels}
    world.objects[JOB_SET]["j-7"] = stray
    world.step()
    assert list(world.objects[JOB_SET]) == ["j-1"]


def test_events_tell_only_what_has_happened() -> None:
    """Without its Service no JobSet is made, and no event says that the attempt begins."""
    world = World()
    for _ in range(3):
        world.step(faults={2: FORBIDDEN, 1: FORBIDDEN} if world.status else {2: FORBIDDEN})
        assert not world.objects[JOB_SET]
    assert "Created" not in world.notes
    assert world.condition("Stalled") == ("True", "Refused")
    assert "Service" in world.message("Stalled")
    world.settle()
    assert world.notes.count("Created") == 1
    assert world.condition("Stalled") == ("False", "NotStalled")


def test_lost_answer_of_a_creation_is_no_error() -> None:
    """What is there already and belongs to the job is what was wanted."""
    world = World()
    world.step(faults={1: LOST, 2: LOST})
    world.step(faults={3: LOST})
    world.settle()
    assert list(world.objects[JOB_SET]) == ["j-1"]
    assert world.condition("Stalled") == ("False", "NotStalled")


def _lose_pods(world: World, *slices: int) -> None:
    for index in slices:
        world.pod(f"j-1-slice-{index}")["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


def test_refused_deletion_is_told_and_stops_no_other() -> None:
    """One slice's Job may not be deleted: the job says so, and the other slice comes back."""
    world = settled()
    before = dict(world.objects[JOB])
    _lose_pods(world, 0, 1)
    has_status = decide(world.snapshot(), world.now_ms).status is not None
    world.step(faults={int(has_status): FORBIDDEN})
    assert len([name for name in before if name not in world.objects[JOB]]) == 1
    assert world.notes.count("SliceRestarted") == 1
    world.step()
    assert world.condition("Stalled") == ("True", "Refused")
    assert "cannot be deleted" in world.message("Stalled")


def test_refused_status_stops_no_recovery() -> None:
    """Whatever the API server thinks of the status, a lost slice comes back."""
    world = training()
    before = dict(world.objects[JOB])
    _lose_pods(world, 1)
    plan = world.step(faults={0: INVALID, 1: INVALID})
    assert plan.status is not None, "there was a status to refuse"
    assert "j-1-slice-1" not in world.objects[JOB]
    assert world.objects[JOB]["j-1-slice-0"] is before["j-1-slice-0"]


def test_refused_status_starts_no_attempt() -> None:
    """What cannot be written down is not begun: a crash would forget it."""
    world = training()
    world.end_jobset("Failed", "broken")
    world.step(faults={0: FORBIDDEN, 1: FORBIDDEN})
    assert list(world.objects[JOB_SET]) == ["j-1"]
    assert world.status["attempt"] == 1
    world.rest()
    assert world.status["restarts"] == 1


def test_status_that_is_too_large_is_reduced_to_what_matters() -> None:
    """Attempt and conditions are stored, so the job goes on, and says what is not."""
    world = training()
    world.end_jobset("Failed", "broken")
    for _ in range(4):
        world.step(faults={0: Fault(413)})
        world.controllers()
    assert world.status["attempt"] == 2
    assert world.condition("Degraded") == ("True", "StatusRefused")
    assert "not stored" in world.message("Degraded")
    assert not world.objects[JOB_SET]
    world.now_ms += 5_000
    world.step(faults={0: Fault(413)})
    assert list(world.objects[JOB_SET]) == ["j-2"]
    world.settle()
    assert world.status["restarts"] == 1
    assert world.condition("Degraded")[0] == "False"


def test_clock_that_was_set_back_delays_nothing_for_long() -> None:
    """A back-off that seems to last longer than any back-off has ended."""
    world = training()
    world.end_jobset("Failed", "broken")
    world.settle()
    world.now_ms -= 3_600_000
    world.rest()
    assert list(world.objects[JOB_SET]) == ["j-2"]


def test_end_without_a_time_is_an_end() -> None:
    """A status in which somebody has left out when the job ended stops no pass."""
    world = settled(ttlSecondsAfterFinished=60)
    world.end_jobset("Completed")
    world.settle()
    del world.status["finishedAt"]
    assert world.step().requeue_after_s == pytest.approx(60, abs=1)
    world.now_ms += 61_000
    world.step()
    assert world.deleted == ["TPUTrainingJob j"]
