"""Nodes that are avoided: who is, for how long, and when an attempt is begun for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.core.histories import CREATED_MS, loss, progress, start
from tests.core.stories import settled, told, training
from tests.core.world import START_MS, World
from tpujob_agent.protocol import Cause
from tpujob_operator.core.checks import Check
from tpujob_operator.core.history import History
from tpujob_operator.core.kinds import JOB_SET, POD
from tpujob_operator.core.memory import LostPod, Memory
from tpujob_operator.core.nodes import NodeView
from tpujob_operator.core.suspects import DAY_MS, Suspect, merged, struck

T0 = CREATED_MS + DAY_MS
HOUR_MS = 3_600_000


def history(*losses: tuple[int, str, str], recovered: bool = True) -> History:
    """Losses of (time, cause, node), with a step after each if they were recovered from."""
    made = History.start(CREATED_MS)
    for at_ms, cause, node in losses:
        made = made.apply(loss(T0 + at_ms, T0 + at_ms, cause=cause, node=node))
        if recovered:
            made = made.apply(progress(T0 + at_ms + 1_000, 1, 2))
    return made


@pytest.mark.parametrize(
    ("losses", "names"),
    [
        ([(0, "node", "a"), (HOUR_MS, "straggler", "a")], ["a"]),
        ([(0, "process", "a"), (HOUR_MS, "process", "b")], []),
        ([(0, "process", "a")], []),
        ([(0, "node", "a"), (DAY_MS, "node", "a")], []),
        ([(0, "node", "a"), (DAY_MS, "node", "a"), (DAY_MS + 2_000, "node", "a")], ["a"]),
        ([(0, "preemption", "a"), (HOUR_MS, "maintenance", "a")], []),
        ([(0, "userError", "a"), (HOUR_MS, "checkpoint", "a")], []),
        ([(0, "node", ""), (HOUR_MS, "node", "")], []),
    ],
)
def test_two_incidents_within_a_day_make_a_suspect(
    losses: list[tuple[int, str, str]], names: list[str]
) -> None:
    """Of causes that a node can have; what users and owners of nodes do is no fault of it."""
    incidents = history(*losses).incidents.newest
    found = struck(incidents, {"a": "pool"}, 0, T0 + losses[-1][0] + 1)
    assert [item.name for item in found] == names
    assert all(item.pool == "pool" and item.until_ms > T0 for item in found)


def test_incidents_of_one_fault_count_once() -> None:
    """What happens before the job has recovered belongs to what it recovers from."""
    losses = history((0, "node", "a"), (5_000, "node", "a"), recovered=False)
    assert struck(losses.incidents.newest, {}, 0, T0 + HOUR_MS) == ()


def test_suspicion_ends() -> None:
    """A day after the last but one incident, or when all before is forgiven."""
    incidents = history((0, "node", "a"), (HOUR_MS, "node", "a")).incidents.newest
    (suspect,) = struck(incidents, {}, 0, T0 + 2 * HOUR_MS)
    assert suspect.until_ms == T0 + DAY_MS
    assert suspect.reason == "2 incidents within 24 h: node, node"
    assert struck(incidents, {}, 0, suspect.until_ms) == ()
    assert struck(incidents, {}, T0 + HOUR_MS, T0 + 2 * HOUR_MS) == ()


def test_a_node_is_listed_once_with_its_longest_suspicion() -> None:
    """And the list is bounded."""
    short, long, other = Suspect("a", "x", 0, 1), Suspect("a", "y", 0, 2), Suspect("A", "z", 0, 9)
    assert merged([long], [short], [other]) == (other, long)
    many = [Suspect(f"n{i:02}", "x", 0, i) for i in range(40)]
    assert merged(many)[0].name == "n24"


def test_memory_survives_its_way_through_status() -> None:
    """Also what older operators have written."""
    memory = Memory(
        dead_nodes=(Suspect("a", "x", 0, 1, "p"),),
        forgiven_ms=7,
        lost_pods=(LostPod(5, 1, 0, "node", "pod"),),
        checks=(Check("d", 5, "Fits", "fits"), Check("e", 6)),
    )
    assert Memory.from_json(json.loads(json.dumps(memory.to_json()))) == memory
    assert Memory.from_json({}) == Memory()
    newer = {"digest": "d", "since_ms": 5, "answer": "Perhaps", "score": 1}
    assert Memory.from_json({"checks": [newer]}) == Memory()


def without_node(**spec: Any) -> World:
    """A job whose node is gone, and its pods removed from it."""
    world = settled(**spec)
    world.nodes["node"] = NodeView("node", "u", START_MS, pool="pool-a")
    world.lose_node()
    world.settle()
    world.now_ms += 60_000
    world.settle()
    return world


def avoiding(world: World) -> tuple[str | None, list[Any]]:
    """The JobSet's annotation, and the rules of its worker pods."""
    (jobset,) = world.objects[JOB_SET].values()
    pod = jobset["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]
    affinity = pod.get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    rules = [
        (rule["key"], rule["operator"], rule["values"])
        for term in terms.get("nodeSelectorTerms", [])
        for rule in term["matchExpressions"]
    ]
    return jobset["metadata"]["annotations"].get("tpujob.dev/avoided-nodes"), rules


def finds_no_place(world: World, still_ms: int, later_ms: int) -> None:
    """Its pods do not: nothing happens for some time, and another attempt begins after it."""
    attempt = world.status["attempt"]
    world.find_no_place()
    world.now_ms += still_ms
    world.settle()
    assert world.status["attempt"] == attempt
    world.now_ms += later_ms
    world.rest()
    assert world.status["attempt"] == attempt + 1


def test_pods_that_find_no_place_beside_a_dead_node_move() -> None:
    """Another attempt avoids the node, and a slice of several hosts its pool."""
    world = without_node(topology="2x4")
    (suspected,) = world.status["nodes"]["suspected"]
    assert suspected["name"] == "node"
    assert world.notes.count("NodeSuspected") == 1
    finds_no_place(world, 1_000, 2_000)
    assert world.notes.count("NewAttempt") == 1
    name, rules = avoiding(world)
    assert name == "node"
    assert ("kubernetes.io/hostname", "NotIn", ["node"]) in rules
    assert ("cloud.google.com/gke-nodepool", "NotIn", ["pool-a"]) in rules


def test_a_node_that_is_back_is_used_again() -> None:
    """It leaves the list at once; pods that wait are moved for it, others stay."""
    world = without_node()
    world.find_no_place()
    world.now_ms += 20_000
    world.settle()
    assert avoiding(world) == ("node", [("kubernetes.io/hostname", "NotIn", ["node"])])
    world.find_no_place()
    world.dead_nodes.clear()
    world.nodes["node"] = NodeView("node", "u", START_MS, is_ready=True)
    world.settle()
    world.now_ms += 14_000
    world.settle()
    assert world.status["attempt"] == 2
    world.now_ms += 2_000
    world.settle()
    assert "nodes" not in world.status
    assert world.status["attempt"] == 3
    assert avoiding(world) == (None, [])


def test_a_deleted_node_is_no_bad_place() -> None:
    """Its pool gets another one: nothing is avoided, whenever the deletion is seen."""
    world = without_node()
    assert "nodes" in world.status
    world.nodes.clear()
    world.settle()
    assert "nodes" not in world.status
    world = settled()
    world.lose_node()
    world.dead_nodes["node"] = 0
    world.settle()
    world.now_ms += 60_000
    world.settle()
    assert "NodeGone" in world.notes
    assert "nodes" not in world.status


def test_a_running_world_is_not_moved() -> None:
    """Two incidents on its node make a suspect; a spare that finds no place changes nothing."""
    world = training(spares=1)
    twice(world)
    assert [item["name"] for item in world.status["nodes"]["suspected"]] == ["node"]
    world.pod("j-1-slice-2")["spec"].pop("nodeName")
    world.find_no_place()
    world.now_ms += 20_000
    world.settle()
    assert world.status["attempt"] == 1


def twice(world: World) -> None:
    """Two incidents on the node, each recovered from."""
    for generation in (1, 2):
        at = world.now_ms
        cause, step = Cause.HANG.value, generation * 10
        lost = loss(at, at, generation=generation, cause=cause, node="node")
        again = start(at + 1_000, generation=generation + 1)
        done = progress(at + 1_500, step, step + 5, generation=generation + 1)
        world.readings.append(told(lost, *again, done, first=generation * 100))
        world.now_ms += 10_000
        world.settle()


def test_the_next_attempt_avoids_suspects_and_forgives_when_it_finds_no_place() -> None:
    """A suspicion is worth another node, but not a job that does not run."""
    world = training()
    twice(world)
    world.end_jobset("Failed", "coordinator failed")
    world.settle()
    world.now_ms += 10_000
    world.settle()
    assert avoiding(world)[0] == "node"
    finds_no_place(world, 200_000, 200_000)
    assert world.status["attempt"] == 3
    assert avoiding(world) == (None, [])
    assert "nodes" not in world.status


def test_pods_that_may_wait_for_others_to_leave_are_not_moved_on_a_suspicion() -> None:
    """A pod takes its grace period to make room; a move would cost all pods of the job."""
    world = training()
    twice(world)
    at = world.now_ms
    world.readings.append(told(loss(at, at, generation=3), first=900))
    pod = world.pod("j-1-slice-1")
    world.remove(POD, pod["metadata"]["name"], pod["metadata"]["uid"])
    world.settle()
    finds_no_place(world, 55_000, 10_000)
    assert avoiding(world)[0] == "node"
