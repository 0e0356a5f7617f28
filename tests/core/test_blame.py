"""Which pod of a broken slice is to blame: the one that was lost, not those that went with it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.core.histories import loss, progress
from tests.core.stories import told, training
from tests.core.world import World
from tpujob_operator.core.kinds import JOB, POD
from tpujob_operator.core.memory import CALM_MS
from tpujob_operator.core.projection import HOST_INDEX_LABEL

SLICE = "j-1-slice-1"


def broken(world: World, *pods: dict[str, Any]) -> None:
    """Pods of one slice are deleted, and the operator has the slice made anew."""
    for pod in pods:
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.settle()
    assert world.deleted == [f"Job {SLICE}"]


def taken(world: World, host: int, first: int = 20, **data: Any) -> None:
    """The coordinator blames a host of the slice."""
    place: dict[str, Any] = {"slice": 1, "host": host, "node": "other", "pod": f"pod-{host}"}
    seen = loss(world.now_ms, world.now_ms, cause="preemption", **(place | data))
    world.readings.append(told(seen, first=first))
    world.settle()


def blamed(world: World) -> tuple[str, int]:
    """Node and host of the only incident."""
    (incident,) = world.status["incidents"]
    return incident["node"], incident["worker"]


def hosts(world: World) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pods of the slice, which are two."""
    world.objects[JOB][SLICE]["spec"]["parallelism"] = 2
    first = world.pod(SLICE)
    second = copy.deepcopy(first)
    name = second["metadata"]["name"] = first["metadata"]["name"] + "-too"
    second["metadata"]["uid"] += "-too"
    second["metadata"]["labels"][HOST_INDEX_LABEL] = "1"
    world.objects[POD][name] = second
    return first, second


def test_pod_that_was_lost_is_blamed_though_another_says_goodbye_first() -> None:
    """The kubelet of the lost one may be the slower one; budgets and counts are not touched."""
    world = training()
    _, second = hosts(world)
    broken(world, second)
    taken(world, host=0)
    assert blamed(world) == ("node", 1)
    assert second["metadata"]["name"] in world.status["incidents"][0]["message"]
    assert world.history.incidents.counts == {"preemption/R2": 1}
    assert world.memory.lost_pods == ()


def test_later_loss_of_the_slice_is_another_matter() -> None:
    """A lost pod explains one incident."""
    world = training()
    _, second = hosts(world)
    broken(world, second)
    taken(world, host=1, pod=second["metadata"]["name"], node="node")
    assert blamed(world) == ("node", 1)
    assert world.memory.lost_pods == ()
    world.now_ms += CALM_MS // 2
    taken(world, host=0, first=21)
    assert [one["worker"] for one in world.status["incidents"]] == [1, 0]


def test_loss_right_after_a_recovery_is_not_taken_for_the_one_before() -> None:
    """The slice is hit anew, seconds after the step that ended its last loss."""
    world = training()
    _, second = hosts(world)
    taken(world, host=0, first=20)
    world.now_ms += 2_000
    world.readings.append(told(progress(world.now_ms, 5, 5), first=21))
    world.settle()
    world.now_ms += 1_000
    broken(world, second)
    world.now_ms += 1_000
    taken(world, host=0, first=22)
    assert [one["worker"] for one in world.status["incidents"]] == [0, 1]
    assert world.memory.lost_pods == ()


@pytest.mark.parametrize("late_ms", [0, CALM_MS + 10_000])
def test_nobody_else_is_blamed_where_it_is_not_known(late_ms: int) -> None:
    """Several pods at once, or a loss long afterwards."""
    world = training()
    pods = hosts(world)
    broken(world, *(pods[1:] if late_ms else pods))
    world.now_ms += late_ms
    taken(world, host=0)
    assert blamed(world) == ("other", 0)
