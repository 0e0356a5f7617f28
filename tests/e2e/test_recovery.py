"""Losses that come together, and a job without its coordinator, on real nodes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from faults import catalogue, processes
from faults.scene import Place
from localcluster.kubeapi import Object
from tests.e2e.rig import (
    RECOVER_S,
    Jobs,
    assert_adds_up,
    uids,
)
from tests.waiting import wait_until
from tpujob_agent.protocol import REPORT_INTERVAL_S
from tpujob_operator.core.kinds import NODE, POD

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_training_goes_on_without_its_coordinator(jobs: Jobs) -> None:
    """A coordinator that is gone at once costs nothing: same world, no lost time."""
    jobs.train("j")
    before = jobs.wait_step("j", 15)
    pods = jobs.pods("j")
    scene = jobs.scene("j")
    pids = {host: scene.trainer_pid(Place(0, host)) for host in (0, 1)}
    old = uids(jobs.pods("j", "coordinator"))
    catalogue.make("kill-coordinator", scene)

    def is_new() -> bool:
        now = uids(jobs.pods("j", "coordinator"))
        return bool(now) and now != old

    wait_until(is_new, "another coordinator pod", RECOVER_S)
    status = jobs.wait_step("j", before["step"] + 150)
    assert {host: scene.trainer_pid(Place(0, host)) for host in (0, 1)} == pids
    assert uids(jobs.pods("j")) == uids(pods)
    assert status["generation"] == 1
    assert status["incidents"] == []
    assert status["goodput"]["seconds"].get("rollback", 0.0) == 0.0
    # What was done while nobody listened counts as training: 0.05 s a step at least, but for the
    # steps that the first status did not know of yet.
    done = status["step"] - before["step"]
    assert _trained_s(status) - _trained_s(before) >= done * 0.05 - REPORT_INTERVAL_S
    assert_adds_up(status)
    processes.kill(scene, Place(0, 0))  # the new one can recover what the old one began
    assert jobs.wait_status("j", lambda s: s["generation"] == 2, "generation 2")["attempt"] == 1


def _trained_s(status: Object) -> float:
    goodput = status["goodput"]
    return float(goodput["seconds"]["productive"] + goodput["unsettledSeconds"])


def test_coordinator_and_worker_lost_together(jobs: Jobs) -> None:
    """A worker deleted with the coordinator is replaced, and a new world goes on from the save."""
    jobs.train("j")
    jobs.wait_status("j", lambda s: s.get("checkpoint", {}).get("step", 0) >= 20, "a checkpoint")
    before = jobs.pods("j") | jobs.pods("j", "coordinator")
    for name in ("j-1-coordinator-0-0", "j-1-slice-0-1"):
        jobs.delete(POD, before[name]["metadata"]["name"])
    wait_until(
        lambda: (
            uids(jobs.pods("j")).keys() == {"j-1-slice-0-0", "j-1-slice-0-1"}
            and uids(jobs.pods("j"))["j-1-slice-0-1"] != uids(before)["j-1-slice-0-1"]
        ),
        "another worker",
        RECOVER_S,
    )
    lost = jobs.status("j")
    status = jobs.wait_step("j", lost["step"] + 100)
    assert status["attempt"] == 1
    assert status["checkpoint"]["step"] > lost["checkpoint"]["step"]
    assert_adds_up(status)


def test_all_trainers_killed_at_once(jobs: Jobs) -> None:
    """Trainers that die together are one incident of one budget, not one for each."""
    jobs.train("j")
    jobs.wait_step("j", 15)
    pods = jobs.pods("j")
    scene = jobs.scene("j")
    places = [Place(0, host) for host in range(len(pods))]
    pids = {place: scene.trainer_pid(place) for place in places}

    def kill(place: Place) -> None:
        # The first one's death may have ended the others before their turn.
        scene.shell(place, f"kill -KILL {pids[place]} || true")

    with ThreadPoolExecutor(len(pods)) as pool:
        assert [*pool.map(kill, places)] == [None] * len(pods)
    status = jobs.wait_recovered("j")
    status = jobs.wait_step("j", status["step"] + 20)
    assert 1 <= len(status["incidents"]) <= len(pods)  # exec may take longer than a restart
    assert {incident["rung"] for incident in status["incidents"]} == {"R0"}
    assert uids(jobs.pods("j")) == uids(pods)
    assert_adds_up(status)


def test_slice_of_a_dead_node_moves_to_another_pool(jobs: Jobs) -> None:
    """R4: a node loses power and stays away: what is left on it goes, and its pool is avoided."""
    if jobs.cluster is None:
        pytest.skip("a node's power is cut from its host, which needs the local cluster")
    jobs.train("j")
    jobs.wait_status("j", lambda s: s.get("checkpoint", {}).get("step", 0) >= 20, "a checkpoint")
    before = jobs.pods("j")
    node = before["j-1-slice-0-1"]["spec"]["nodeName"]
    jobs.cluster.fail_node(node)
    try:
        status = jobs.wait_recovered("j")
        after = jobs.pods("j")
    finally:
        jobs.cluster.heal_node(node)
    incident = status["incidents"][0]
    assert (incident["cause"], incident["rung"], incident["node"]) == ("node", "R4", node)
    assert status["attempt"] == 2
    assert [item["name"] for item in status["nodes"]["suspected"]] == [node]
    assert after.keys() == {"j-2-slice-0-0", "j-2-slice-0-1"}
    assert not nodes_of(after) & nodes_of(before)
    assert {"process", "userError"}.isdisjoint(
        name for name, budget in status["budgets"].items() if budget["used"]
    )
    assert {"NodeGone", "NodeSuspected", "NewAttempt"} <= jobs.events("j")
    assert_adds_up(status)
    wait_until(lambda: is_ready(jobs, node), f"{node} is ready", RECOVER_S)
    jobs.wait_status("j", lambda s: "nodes" not in s, f"{node} is no suspect")


def nodes_of(pods: dict[str, Object]) -> set[str]:
    """Names of the nodes that pods run on."""
    return {pod["spec"]["nodeName"] for pod in pods.values()}


def is_ready(jobs: Jobs, node: str) -> bool:
    """Whether a node is Ready."""
    conditions = jobs.api.get(NODE.path(None, node))["status"]["conditions"]
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
