"""Taints of suspected nodes on a real API server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes.aio import config
from kubernetes.aio.client import Configuration

from localcluster.cluster import Cluster
from tests.core.histories import CREATED_MS, loss, progress
from tests.operator.nodes import make_node, remove_node, tpu_labels
from tpujob_operator.core.history import History
from tpujob_operator.core.kinds import NODE
from tpujob_operator.core.memory import Memory
from tpujob_operator.core.nodes import SUSPECT_TAINT
from tpujob_operator.core.snapshot import JobKey
from tpujob_operator.core.suspects import DAY_MS
from tpujob_operator.shell.client import Client
from tpujob_operator.shell.jobstate import JobState
from tpujob_operator.shell.nodecache import NodeCache
from tpujob_operator.shell.tainter import Tainter

pytestmark = pytest.mark.control_plane
#: Somebody else's; those of the node controller come and go while a test runs.
OTHERS = {"key": "tests.tpujob.dev/others", "effect": "PreferNoSchedule"}


@pytest.fixture
def ten_nodes(control_plane: Cluster) -> Iterator[list[str]]:
    """Ten TPU nodes, one of which may be tainted."""
    names = [f"tainted-{uuid.uuid4().hex[:8]}" for _ in range(10)]
    for name in names:
        make_node(control_plane, name, labels=tpu_labels(name), taints=[OTHERS])
    yield names
    for name in names:
        remove_node(control_plane, name)


def struck_twice(node: str) -> History:
    """A job that has lost the node twice within a day."""
    history = History.start(CREATED_MS)
    for at_ms in (CREATED_MS + DAY_MS, CREATED_MS + DAY_MS + 60_000):
        history = history.apply(loss(at_ms, at_ms, cause="node", node=node))
        history = history.apply(progress(at_ms + 1_000, 1, 2))
    return history


async def test_a_node_is_tainted_and_freed_in_time(
    control_plane: Cluster, ten_nodes: list[str]
) -> None:
    """The taint is there until the suspicion ends, and nobody else's taints are touched."""
    victim, nodes = ten_nodes[3], NodeCache()

    def taints(key: str) -> list[dict[str, Any]]:
        spec = control_plane.api.get(NODE.path(None, victim))["spec"]
        return [taint for taint in spec.get("taints", []) if taint["key"] == key]

    for name in ten_nodes:
        nodes.put(NODE, control_plane.api.get(NODE.path(None, name)))
    state = JobState("u", struck_twice(victim), Memory())
    configuration = Configuration()
    load: Any = config.load_kube_config  # has no types
    await load(str(control_plane.kubeconfig), client_configuration=configuration)
    async with Client(configuration) as client:
        tainter = Tainter(client, nodes, {JobKey("ns", "j"): state})
        await tainter.step(CREATED_MS + DAY_MS + 120_000)
        assert taints(SUSPECT_TAINT) == []  # one tenant may have made it up
        tainter = Tainter(client, nodes, {JobKey(name, "j"): state for name in ("ns", "other")})
        # The next step tries again where somebody else has just written the node.
        for at_ms, number in ((120_000, 1), (240_000, 1), (DAY_MS + 1_000, 0)):
            for _ in range(5):
                await tainter.step(CREATED_MS + DAY_MS + at_ms)
            assert [taint["effect"] for taint in taints(SUSPECT_TAINT)] == ["NoSchedule"] * number
            assert taints(OTHERS["key"]) == [OTHERS]


async def test_taints_go_with_the_setting(control_plane: Cluster, ten_nodes: list[str]) -> None:
    """An operator that is not to taint nodes frees those that an earlier one has tainted."""
    victim, nodes = ten_nodes[5], NodeCache()
    ours = {"key": SUSPECT_TAINT, "value": "4102444800", "effect": "NoSchedule"}
    control_plane.api.merge(NODE.path(None, victim), {"spec": {"taints": [OTHERS, ours]}})

    def keys() -> list[str]:
        spec = control_plane.api.get(NODE.path(None, victim))["spec"]
        return [taint["key"] for taint in spec.get("taints", [])]

    assert SUSPECT_TAINT in keys()
    configuration = Configuration()
    load: Any = config.load_kube_config  # has no types
    await load(str(control_plane.kubeconfig), client_configuration=configuration)
    async with Client(configuration) as client:
        for _ in range(5):  # somebody else may just have written the node
            nodes.put(NODE, control_plane.api.get(NODE.path(None, victim)))
            await Tainter(client, nodes, {}).free()
    assert SUSPECT_TAINT not in keys()
    assert OTHERS["key"] in keys()
