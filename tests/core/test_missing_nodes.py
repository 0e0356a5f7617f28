"""A slice that the cluster does not have is told apart from one that is not free."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.world import World, job_object
from tpujob_operator.core.kinds import NODE
from tpujob_operator.core.nodes import Shape
from tpujob_operator.shell.nodecache import NodeCache

V5E = ("tpu-v5-lite-podslice", "2x2")  # what the job of a ``World`` asks for


def _waiting(shapes: frozenset[Shape] | None, **spec: Any) -> World:
    """A job whose pods find no node."""
    world = World(obj=job_object(**spec), shapes=shapes)
    world.settle()
    world.find_no_place()
    plan = world.settle()
    # Pods of a slice that is made anew find no node as long as the old ones hold its chips.
    assert world.condition("Progressing") == ("True", "WaitingForPods")
    assert 0 < (plan.requeue_after_s or 0) <= 5
    world.now_ms += 5_000
    world.settle()
    return world


def _message(world: World, kind: str) -> str:
    found = next(item for item in world.status["conditions"] if item["type"] == kind)
    return str(found["message"])


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (frozenset({("tpu7x", "2x2x1"), (V5E[0], "4x4")}), f"{V5E[0]} 4x4, tpu7x 2x2x1"),
        (frozenset[Shape](), "it has no TPU nodes"),
    ],
)
def test_what_the_cluster_has_is_told(shapes: frozenset[Shape], words: str) -> None:
    """Soon as the reason for waiting, and as a stall when no autoscaler has helped."""
    world = _waiting(shapes)
    assert world.condition("Progressing") == ("False", "Unschedulable")
    assert words in _message(world, "Progressing")
    assert world.condition("Stalled")[0] == "False"
    plan = world.settle()
    assert plan.requeue_after_s is not None
    world.now_ms += 600_000
    world.settle()
    assert world.condition("Stalled") == ("True", "NoSuchNodes")
    assert _message(world, "Stalled").startswith(
        f"No node of the cluster belongs to a slice {V5E[0]}"
    )


@pytest.mark.parametrize("shapes", [None, frozenset({V5E})])
def test_nodes_that_are_not_free_are_waited_for(shapes: frozenset[Shape] | None) -> None:
    """However long it takes; also where nothing is known of nodes."""
    world = _waiting(shapes)
    world.now_ms += 3_600_000
    world.settle()
    assert world.condition("Stalled")[0] == "False"
    told = _message(world, "Progressing")
    assert told.startswith("3 pods find no node. The coordinator: 0/3")
    assert "are free" in told


def test_flex_start_queues_for_as_long_as_it_takes() -> None:
    """Nodes come when there is capacity."""
    world = _waiting(frozenset(), provisioning={"model": "FlexStart"})
    world.now_ms += 3_600_000
    world.settle()
    assert world.condition("Stalled")[0] == "False"


def test_shapes_follow_the_nodes() -> None:
    """Each counts as long as one node has it."""
    cache = NodeCache()

    def node(name: str, version: int, topology: str) -> dict[str, object]:
        labels = {
            "cloud.google.com/gke-tpu-accelerator": V5E[0],
            "cloud.google.com/gke-tpu-topology": topology,
        }
        meta = {"name": name, "uid": name, "resourceVersion": str(version), "labels": labels}
        return {"metadata": meta | {"creationTimestamp": "2026-01-01T00:00:00Z"}}

    cache.put(NODE, node("a", 1, "2x2"))
    cache.put(NODE, node("b", 2, "2x2"))
    cache.put(NODE, node("b", 3, "4x4"))
    assert cache.shapes == {V5E, (V5E[0], "4x4")}
    cache.put(NODE, node("b", 3, "2x2"))  # old news
    cache.remove(NODE, node("a", 1, "2x2"))
    assert cache.shapes == {(V5E[0], "4x4")}
    cache.remove(NODE, node("b", 3, "4x4"))
    assert cache.shapes == frozenset()
