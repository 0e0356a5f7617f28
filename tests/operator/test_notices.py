"""Nodes that are taken away: operator, coordinator and agents together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from tests.agent import rig as agents
from tests.operator.nodes import kubelets, make_node, remove_node
from tests.operator.pods import local_pods
from tests.operator.rig import Jobs, running
from tests.waiting import wait_until
from tpujob_agent.protocol import STATE_PATH
from tpujob_tpu.catalogue import ACCELERATOR_LABEL

pytestmark = pytest.mark.control_plane
_SPOT = {ACCELERATOR_LABEL: "tpu-v5-lite-podslice", "cloud.google.com/gke-spot": "true"}
#: As the agents call them.
_NODES = ("node00", "node10")


@pytest.fixture
def spot_nodes(control_plane: Cluster) -> Iterator[None]:
    """The nodes of two slices."""
    for name in _NODES:
        make_node(control_plane, name, labels=_SPOT)
    with kubelets(control_plane, *_NODES):
        yield
    for name in _NODES:
        remove_node(control_plane, name)


@pytest.mark.usefixtures("spot_nodes")
def test_taken_nodes_are_announced_or_recognised(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One vanishes without a word, one is tainted before: both were preempted, nobody is blamed."""

    def place() -> None:
        for pod in own_jobs.wait_pods("j", 3):
            index = pod["metadata"]["name"].removeprefix("j-1-slice-")[:1]
            own_jobs.run_pod(pod, f"node{index}0" if index.isdigit() else "node0")

    with (
        local_pods(control_plane, own_jobs, tmp_path, monkeypatch, place) as pods,
        running(control_plane, tmp_path, own_jobs.namespace, env=pods.access),
    ):
        pods.start()
        own_jobs.wait_status("j", lambda status: status.get("step", 0) >= 5, "fifth step")
        taint = {"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}
        path = "/api/v1/nodes/node10"
        control_plane.api.merge(path, {"spec": {"taints": [taint]}})
        own_jobs.wait_event("j", "HostLeaving")
        members = pods.rig.get(STATE_PATH, agents.TOKEN)["members"]
        assert [one["node"] for one in members if one["notice"]] == ["node10"]
        pods.rig.agents[0, 0].kill()
        pods.rig.agents[0, 0].wait()
        _wait_cause(own_jobs, 0, "node")
        remove_node(control_plane, "node00")
        _wait_cause(own_jobs, 0, "preemption")
        pods.start_agent(0)
        own_jobs.wait_status("j", lambda status: status["generation"] == 2, "second world")
        pods.rig.agents[1, 0].kill()
        _wait_cause(own_jobs, 1, "preemption")
    status = own_jobs.status("j")
    assert "spot node has been taken away" in status["incidents"][0]["message"]
    assert "about to be terminated" in status["incidents"][1]["message"]
    assert status["budgets"]["infrastructure"]["used"] == 2
    assert {status["budgets"][name]["used"] for name in ("process", "userError")} == {0}


def _wait_cause(jobs: Jobs, number: int, cause: str) -> None:
    def has_cause() -> bool:
        incidents = jobs.status("j").get("incidents") or []
        return len(incidents) > number and incidents[number]["cause"] == cause

    wait_until(has_cause, f"incident {number} of cause {cause}")
