"""Pods that wait for dead nodes: removed by force after a proof, and never without one."""

from typing import Any

import pytest

from tests.core.histories import loss
from tests.core.stories import settled, told, training
from tests.core.world import START_MS, World
from tpujob_agent.protocol import Cause
from tpujob_operator.core.kinds import JOB_SET, POD
from tpujob_operator.core.nodes import NodeView, Pulse, take_pulse
from tpujob_operator.core.policies.dead_nodes import next_look_s, nodes_in_doubt, suspicious

NODE = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
LIMIT_MS = 60_000


def lease(renewed: str) -> dict[str, Any]:
    """A lease that was renewed then."""
    return {"spec": {"renewTime": renewed}}


@pytest.mark.parametrize(
    ("looks", "silent_since_ms"),
    [
        ([(0, NODE, lease("a")), (9, NODE, lease("a"))], 1),
        ([(0, NODE, lease("a")), (9, NODE, lease("b"))], 10),  # the kubelet lives
        ([(0, READY, lease("a")), (9, NODE, lease("a"))], 1),  # Kubernetes is slower to notice
        ([(0, READY, lease("a")), (9, READY, lease("b"))], 10),
        ([(0, NODE, lease("a")), (5, READY, lease("a")), (9, NODE, lease("a"))], 6),
        ([(0, NODE, None), (9, NODE, None)], 0),  # no lease: nothing tells
        ([(0, NODE, lease("a")), (9, None, None)], 0),
        ([(0, {"status": {}}, lease("a"))], 1),  # it has never said that it is ready
    ],
    ids=[
        "silent", "renewed", "not ready later", "ready", "ready in between", "no lease", "deleted",
        "no condition",
    ],
)  # fmt: skip
def test_silence_is_one_and_the_same_lease(
    looks: list[tuple[int, Any, Any]], silent_since_ms: int
) -> None:
    """It is counted from the first look by our clock; any sign of life begins it anew."""
    pulse = None
    for at_ms, node, its_lease in looks:
        pulse = take_pulse(pulse, node, its_lease, 1 + at_ms)
    assert pulse is not None
    assert pulse.silent_since_ms == silent_since_ms


def test_proofs_are_in_words() -> None:
    """A deleted node is proof at once, silence only after the limit and if it is not Ready."""
    assert "no longer exists" in take_pulse(None, None, None, 1).proof_of_death(LIMIT_MS, 1)
    silent = Pulse(silent_since_ms=1)
    assert silent.proof_of_death(LIMIT_MS, LIMIT_MS) == ""
    assert "lease for 60 s" in silent.proof_of_death(LIMIT_MS, LIMIT_MS + 1)
    ready = Pulse(silent_since_ms=1, is_ready=True)
    assert ready.proof_of_death(LIMIT_MS, 10 * LIMIT_MS) == ""


def node_view(name: str, *, is_ready: bool) -> NodeView:
    """A node as it is known."""
    return NodeView(name, f"uid-of-{name}", START_MS, is_ready=is_ready)


@pytest.mark.parametrize(
    ("cause", "node", "is_looked_at"),
    [
        (None, node_view("node", is_ready=True), False),
        (None, node_view("node", is_ready=False), True),
        (Cause.NODE, node_view("node", is_ready=True), True),  # long before it is not Ready
        (Cause.PREEMPTION, None, True),
        (Cause.PROCESS, node_view("node", is_ready=True), False),
    ],
    ids=["well", "not ready", "host lost", "host taken away", "trainer killed"],
)
def test_a_node_is_looked_at_before_its_pods_are_evicted(
    cause: Cause | None, node: NodeView | None, is_looked_at: bool
) -> None:
    """A proof takes as long as Kubernetes' own patience: neither waits for the other."""
    world = training()
    if cause:
        lost = loss(world.now_ms, world.now_ms, cause=cause.value, node="node")
        world.readings.append(told(lost, epoch="f"))
    if node:
        world.nodes["node"] = node
    world.step()
    snapshot = world.snapshot()
    names = suspicious(snapshot.nodes, snapshot.history.incidents)
    looked_at = nodes_in_doubt(snapshot.pods, names, world.now_ms)
    assert looked_at == ({"node"} if is_looked_at else set())
    assert (next_look_s(snapshot.pods, names, world.now_ms) == 2) is is_looked_at


def with_lost_node() -> World:
    """All pods are evicted from a node that answers no more; their Jobs are being replaced."""
    world = settled()
    world.lose_node()
    world.settle()
    return world


def stuck(world: World) -> list[str]:
    """Pods that are being deleted."""
    pods = world.objects[POD].values()
    return [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" in pod["metadata"]]


def test_pods_of_a_dead_node_are_removed_after_the_limit_and_once() -> None:
    """Not before, with an event for each, and without waiting for the grace period."""
    world = with_lost_node()
    before = stuck(world)
    assert len(before) == 3
    assert "NodeGone" not in world.notes
    plan = world.step()
    assert plan.requeue_after_s is not None
    assert plan.requeue_after_s <= 2
    world.now_ms += LIMIT_MS
    world.settle()
    assert stuck(world) == []
    assert world.notes.count("NodeGone") == 3
    assert {f"Pod {name}" for name in before} <= set(world.deleted)
    assert len(world.objects[POD]) == 3


def test_pods_of_a_node_that_lives_are_left_to_it() -> None:
    """Its kubelet ends them, however long it takes."""
    world = settled()
    for pod in world.objects[POD].values():
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.now_ms += 600_000
    assert not any("Pod" in item.what for item in world.step().actions if hasattr(item, "what"))
    assert "NodeGone" not in world.notes


def test_a_deleted_node_may_run_its_pods_to_their_end() -> None:
    """Without a Node object a pod is removed once its grace period is over."""
    world = with_lost_node()
    world.dead_nodes["node"] = 0
    world.settle()
    assert len(stuck(world)) == 3
    world.now_ms += 30_000
    world.settle()
    assert stuck(world) == []


@pytest.mark.parametrize("how", ["suspended", "deleted", "failed"])
def test_dead_nodes_hold_up_no_job_that_ends(how: str) -> None:
    """Whatever the job does, nothing of it stays on a dead node."""
    world = settled()
    world.dead_nodes["node"] = START_MS
    if how == "suspended":
        world.obj["spec"]["suspend"] = True
    elif how == "deleted":
        world.obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        for jobset in list(world.objects[JOB_SET].values()):
            world.remove(JOB_SET, jobset["metadata"]["name"], jobset["metadata"]["uid"])
    else:
        world.end_jobset("Failed", "broken")
    world.settle()
    world.now_ms += LIMIT_MS
    world.rest()
    names = [pod["spec"].get("nodeName") for pod in world.objects[POD].values()]
    assert "node" not in names
