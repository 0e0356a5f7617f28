"""Every fault of the ladder, on real nodes: what recovers, what is left alone, what it costs."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from demo import install
from localcluster.kubeapi import Object
from tests.e2e.rig import (
    RECOVER_S,
    Jobs,
    assert_adds_up,
    container_restarts,
    uids,
)
from tests.waiting import wait_until
from tpujob_agent.protocol import REPORT_INTERVAL_S
from tpujob_operator.core.kinds import NODE, POD

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_killed_trainer_is_replaced_in_its_pod(jobs: Jobs) -> None:
    """R0: a SIGKILLed trainer costs a new generation in the same containers, and one restart."""
    jobs.train("j")
    jobs.wait_step("j", 15)
    before = jobs.pods("j")
    jobs.kill_trainer(before["j-1-slice-0-1"])
    status = jobs.wait_recovered("j")
    incident = status["incidents"][0]
    assert (incident["cause"], incident["rung"]) == ("process", "R0")
    assert (incident["slice"], incident["worker"]) == (0, 1)
    assert incident["node"] == before["j-1-slice-0-1"]["spec"]["nodeName"]
    assert status["generation"] == 2
    assert status["budgets"]["process"]["used"] == 1
    assert status["budgets"]["infrastructure"]["used"] == 0
    after = jobs.pods("j")
    assert uids(after) == uids(before)
    assert container_restarts(after) == 0
    assert_adds_up(status)


def test_stopped_trainer_is_named_and_replaced(jobs: Jobs) -> None:
    """R0: a SIGSTOPped trainer is found by its agent, named, and replaced in its pod."""
    jobs.train("j", slices=2)
    jobs.wait_step("j", 15)
    before = jobs.pods("j")
    jobs.stop_trainer(before["j-1-slice-1-0"])
    status = jobs.wait_recovered("j")
    incident = status["incidents"][0]
    assert (incident["cause"], incident["rung"]) == ("hang", "R0")
    assert (incident["slice"], incident["worker"]) == (1, 0)
    assert incident["node"] == before["j-1-slice-1-0"]["spec"]["nodeName"]
    assert "stopped by a signal (SIGSTOP)" in incident["message"]
    assert status["budgets"]["process"]["used"] == 1
    assert uids(jobs.pods("j")) == uids(before)
    assert status["goodput"]["seconds"]["detection"] > 0
    assert_adds_up(status)


def test_deleted_pod_costs_its_slice_and_no_other(jobs: Jobs) -> None:
    """R2: a deleted pod is replaced at once; the other slice keeps its pods and their agents."""
    jobs.train("j", slices=2)
    jobs.wait_step("j", 15)
    before = uids(jobs.pods("j"))
    jobs.delete(POD, jobs.pods("j")["j-1-slice-0-1"]["metadata"]["name"])
    status = jobs.wait_recovered("j")
    incident = status["incidents"][0]
    assert (incident["cause"], incident["rung"]) == ("preemption", "R2")
    assert (incident["slice"], incident["worker"]) == (0, 1)
    assert incident["lostSteps"] == 0, "everybody saves before the pod goes"
    after = uids(jobs.pods("j"))
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] == before[name]} == {
        "j-1-slice-1-0",
        "j-1-slice-1-1",
    }
    assert status["budgets"]["infrastructure"]["used"] >= 1
    assert status["budgets"]["process"]["used"] == 0
    assert_adds_up(status)


def test_killed_container_is_restarted_in_its_pod(jobs: Jobs) -> None:
    """R1: the kubelet restarts a dead container, its agent rejoins, and the pod stays."""
    if jobs.cluster is None:
        pytest.skip("a container is killed from its node, which needs the local cluster")
    jobs.train("j")
    jobs.wait_step("j", 15)
    before = jobs.pods("j")
    victim = before["j-1-slice-0-1"]
    container = victim["status"]["containerStatuses"][0]["containerID"].removeprefix(
        "containerd://"
    )
    ctr = jobs.cluster._nodes.ctr(victim["spec"]["nodeName"])
    kill = [*ctr, "--namespace=k8s.io", "tasks", "kill", "--signal=SIGKILL", container]
    subprocess.run(kill, check=True, capture_output=True)
    status = jobs.wait_recovered("j")
    incident = status["incidents"][0]
    assert (incident["cause"], incident["rung"]) == ("node", "R1")
    assert (incident["slice"], incident["worker"]) == (0, 1)
    after = jobs.pods("j")
    assert uids(after) == uids(before)
    assert container_restarts(after) == 1
    assert_adds_up(status)


def test_training_goes_on_without_its_coordinator(jobs: Jobs) -> None:
    """A deleted coordinator costs nothing: same trainers, same generation, no lost time."""
    jobs.train("j")
    before = jobs.wait_step("j", 15)
    pods = jobs.pods("j")
    pids = {name: jobs.trainer_pid(pod) for name, pod in pods.items()}
    old = uids(jobs.pods("j", "coordinator"))
    jobs.delete(POD, jobs.pods("j", "coordinator")["j-1-coordinator-0-0"]["metadata"]["name"])

    def is_new() -> bool:
        now = uids(jobs.pods("j", "coordinator"))
        return bool(now) and now != old

    wait_until(is_new, "another coordinator pod", RECOVER_S)
    status = jobs.wait_step("j", before["step"] + 150)
    assert {name: jobs.trainer_pid(pod) for name, pod in jobs.pods("j").items()} == pids
    assert uids(jobs.pods("j")) == uids(pods)
    assert status["generation"] == 1
    assert status["incidents"] == []
    assert status["goodput"]["seconds"].get("rollback", 0.0) == 0.0
    # What was done while nobody listened counts as training: 0.05 s a step at least, but for the
    # steps that the first status did not know of yet.
    done = status["step"] - before["step"]
    assert _trained_s(status) - _trained_s(before) >= done * 0.05 - REPORT_INTERVAL_S
    assert_adds_up(status)
    jobs.kill_trainer(pods["j-1-slice-0-0"])  # the new one can recover what the old one began
    assert jobs.wait_status("j", lambda s: s["generation"] == 2, "generation 2")["attempt"] == 1


def _trained_s(status: Object) -> float:
    goodput = status["goodput"]
    return float(goodput["seconds"]["productive"] + goodput["unsettledSeconds"])


def test_job_goes_on_without_its_operator(jobs: Jobs) -> None:
    """A killed operator is not missed: the job recovers meanwhile, and status catches up."""
    jobs.train("j")
    jobs.wait_step("j", 15)
    pods = jobs.pods("j")
    core = jobs.kube.core
    selector = "app.kubernetes.io/name=tpujob-operator"

    def operators() -> dict[str, bool]:
        found = core.list_namespaced_pod(install.NAMESPACE, label_selector=selector).items
        return {
            pod.metadata.uid: any(
                c.type == "Ready" and c.status == "True" for c in pod.status.conditions or []
            )
            for pod in found
        }

    old = operators()
    core.delete_collection_namespaced_pod(
        install.NAMESPACE, label_selector=selector, grace_period_seconds=0
    )
    jobs.kill_trainer(pods["j-1-slice-0-1"])
    wait_until(
        lambda: any(ready for uid, ready in operators().items() if uid not in old),
        "another operator",
        RECOVER_S,
    )
    status = jobs.wait_recovered("j")
    assert [incident["cause"] for incident in status["incidents"]] == ["process"]
    assert status["attempt"] == 1
    assert jobs.jobsets("j") == ["j-1"]
    assert uids(jobs.pods("j")) == uids(pods)
    assert_adds_up(status)
    jobs.wait_step("j", status["step"] + 20)


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
    with ThreadPoolExecutor(len(pods)) as pool:
        assert [*pool.map(jobs.kill_trainer, pods.values())] == [None] * len(pods)
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
