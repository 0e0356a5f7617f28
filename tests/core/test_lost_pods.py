"""Lost pods: a slice is replaced for a pod that was lost, and for nothing that looks like one."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.core.making import Object
from tests.core.stories import settled
from tests.core.world import World
from tpujob_operator.api.base import rfc3339
from tpujob_operator.core.kinds import JOB, JOB_SET, POD
from tpujob_operator.core.projection import pod_view

_GRACE_S = 30


def _delete(pod: Object, asked_ms: int) -> None:
    """Somebody asks for a pod's deletion, within its grace period."""
    pod["metadata"] |= {
        "deletionTimestamp": rfc3339(asked_ms + _GRACE_S * 1000),
        "deletionGracePeriodSeconds": _GRACE_S,
    }


def _bury(world: World, pod: Object) -> None:
    """A pod is gone at once, and its end is remembered."""
    del world.objects[POD][pod["metadata"]["name"]]
    world.tombstones.append(dataclasses.replace(world.dated(pod_view(pod)), is_gone=True))


def _resumed(world: World) -> Object:
    """A Job that was suspended and resumed at once; the pod of before, and the one since."""
    job = world.objects[JOB]["j-1-slice-1"]
    old = world.pod("j-1-slice-1")
    resumed_ms = world.now_ms
    old["metadata"]["creationTimestamp"] = rfc3339(resumed_ms - 1_500)
    _delete(old, resumed_ms - 500)
    resumed = {"type": "Suspended", "status": "False", "reason": "JobResumed"}
    job["status"] = {"startTime": rfc3339(resumed_ms), "conditions": [resumed]}
    return old


@pytest.mark.parametrize("is_gone", [False, True])
def test_pods_that_a_suspension_has_ended_are_not_lost(*, is_gone: bool) -> None:
    """However soon after it the job is resumed, and before there are new pods."""
    world = settled()
    old = _resumed(world)
    if is_gone:
        _bury(world, old)
    world.step()
    assert world.deleted == []


def test_a_pod_lost_after_a_resumption_costs_its_slice() -> None:
    """It was deleted after the Job was resumed."""
    world = settled()
    old = _resumed(world)
    _bury(world, old)
    world.remake_pod("j-1-slice-1")
    _delete(world.pod("j-1-slice-1"), world.now_ms + 2_000)
    world.now_ms += 2_000
    world.step()
    assert world.deleted == ["Job j-1-slice-1"]


@pytest.mark.parametrize("failure", [{"phase": "Failed"}, {"phase": "Failed", "reason": "Evicted"}])
def test_a_slice_made_whole_while_the_operator_was_away_stays(failure: dict[str, Any]) -> None:
    """The failed pod is still there beside the one that has replaced it."""
    world = settled()
    world.pod("j-1-slice-1")["status"] = failure
    world.remake_pod("j-1-slice-1")
    world.objects[JOB]["j-1-slice-1"]["status"]["failed"] = 1
    world.restart_operator()
    world.step()
    assert world.deleted == []


def _evicted(*, is_gone: bool) -> tuple[World, Object]:
    """A job in a queue, one pod of which is deleted; nothing tells yet why."""
    world = settled(queue="research")
    world.objects[JOB_SET]["j-1"]["spec"]["suspend"] = False
    world.settle()
    world.run_pods()
    world.settle()
    world.now_ms += 60_000
    pod = world.pod("j-1-slice-1")
    _delete(pod, world.now_ms)
    if is_gone:
        _bury(world, pod)
    return world, pod


@pytest.mark.parametrize("is_gone", [False, True])
def test_an_eviction_that_pods_show_first_costs_no_slice(*, is_gone: bool) -> None:
    """The watch of pods may be ahead of those of JobSets and Jobs, which Kueue has suspended."""
    world, _ = _evicted(is_gone=is_gone)
    plan = world.step()
    assert plan.requeue_after_s is not None
    assert plan.requeue_after_s <= 3
    world.objects[JOB_SET]["j-1"]["spec"]["suspend"] = True
    world.now_ms += 60_000
    world.settle()
    assert world.deleted == []
    assert world.notes.count("SliceRestarted") == 0


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_pod_deleted_in_a_queue_costs_its_slice_a_little_later(*, is_gone: bool) -> None:
    """Nobody has suspended the job: the pod is lost."""
    world, _ = _evicted(is_gone=is_gone)
    world.step()
    assert world.deleted == []
    world.now_ms += 3_000
    world.step()
    assert world.deleted == ["Job j-1-slice-1"]


def test_a_pod_that_is_disrupted_in_a_queue_costs_its_slice_at_once() -> None:
    """Kueue does not end pods that way."""
    world, pod = _evicted(is_gone=False)
    taken = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    pod["status"]["conditions"] = [taken]
    world.step()
    assert world.deleted == ["Job j-1-slice-1"]


@pytest.mark.parametrize("ahead_ms", [-30_000, 3_600_000])
def test_a_deletion_waits_by_the_operators_own_clock(ahead_ms: int) -> None:
    """The API server's clock may be ahead or behind: Kueue has as long to show an eviction."""
    world, pod = _evicted(is_gone=False)
    _delete(pod, world.now_ms + ahead_ms)
    world.step()
    assert world.deleted == []
    world.now_ms += 3_000
    world.step()
    assert world.deleted == ["Job j-1-slice-1"]
