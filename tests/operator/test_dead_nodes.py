"""Pods that wait for a kubelet that is gone, on a real control plane."""

from __future__ import annotations

from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from localcluster.kubeapi import Object
from tests.operator.nodes import make_node, tpu_labels
from tests.operator.rig import Jobs, running
from tests.waiting import wait_until
from tpujob_operator.core.kinds import JOB_SET, POD, TPU_TRAINING_JOB

pytestmark = pytest.mark.control_plane
_SOON = {"TPUJOB_NODE_LOSS_S": "1"}


def is_there(jobs: Jobs, pod: Object) -> bool:
    """Whether this very pod still exists."""
    found = jobs.find(POD, pod["metadata"]["name"])
    return found is not None and found["metadata"]["uid"] == pod["metadata"]["uid"]


def test_pods_on_a_silent_node_are_removed_and_others_left_to_their_kubelet(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path, silent_node: str
) -> None:
    """Two pods are evicted; the one whose node is silent goes by force, the other one stays."""
    with running(control_plane, tmp_path, own_jobs.namespace, env=_SOON):
        own_jobs.create("j")
        pods = {pod["metadata"]["name"][:-6]: pod for pod in own_jobs.wait_pods("j", 3)}
        dead, alive = pods["j-1-slice-0-0"], pods["j-1-slice-1-0"]
        own_jobs.run_pod(dead, silent_node)
        own_jobs.run_pod(alive)
        own_jobs.evict(alive)
        own_jobs.evict(dead)
        wait_until(lambda: not is_there(own_jobs, dead), "end of the pod on the silent node")
        own_jobs.wait_event("j", "NodeGone")
        assert own_jobs.events("j").count("NodeGone") == 1
        assert is_there(own_jobs, alive)
        own_jobs.wait_pods("j", 3)


def test_pods_of_a_deleted_node_and_a_deleted_job_are_removed(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path, silent_node: str
) -> None:
    """Without a Node object the end of the grace period is enough, and no job is needed for it."""
    with running(control_plane, tmp_path, own_jobs.namespace, env=_SOON) as operator:
        own_jobs.create("j")
        pods = [own_jobs.run_pod(pod, silent_node) for pod in own_jobs.wait_pods("j", 3)]
        own_jobs.delete(POD, pods[0]["metadata"]["name"], gracePeriodSeconds=1)
        control_plane.api.request("DELETE", f"/api/v1/nodes/{silent_node}")
        wait_until(lambda: not is_there(own_jobs, pods[0]), "end of the deleted pod")
        own_jobs.wait_event("j", "NodeGone")
        for pod in own_jobs.all(POD, "j"):
            own_jobs.delete(POD, pod["metadata"]["name"], gracePeriodSeconds=1)
        own_jobs.delete(TPU_TRAINING_JOB, "j")
        wait_until(lambda: not own_jobs.all(POD, "j"), "no pods")
        lines = [f"{pod['metadata']['name']}: node {silent_node} no longer" for pod in pods]
        # A deletion is logged when its answer has come, which is after the pod's end.
        wait_until(lambda: all(line in operator.text for line in lines), f"in the log: {lines}")


def test_pods_that_find_no_place_beside_a_dead_node_move(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path, silent_node: str
) -> None:
    """Another attempt avoids the dead node, until it is back."""
    with running(control_plane, tmp_path, own_jobs.namespace, env=_SOON):
        own_jobs.create("j")
        pods = [own_jobs.run_pod(pod, silent_node) for pod in own_jobs.wait_pods("j", 3)]
        for pod in pods:
            own_jobs.evict(pod)
        own_jobs.wait_event("j", "NodeSuspected")
        (suspected,) = own_jobs.status("j")["nodes"]["suspected"]
        assert suspected["name"] == silent_node
        jobset = own_jobs.wait(JOB_SET, "j-2")  # the scheduler has said that there is no node
        assert jobset["metadata"]["annotations"]["tpujob.dev/avoided-nodes"] == silent_node
        template = jobset["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]
        assert silent_node in str(template["spec"]["affinity"]["nodeAffinity"])
        assert own_jobs.events("j").count("NewAttempt") == 1
        make_node(control_plane, silent_node, labels=tpu_labels(silent_node))
        own_jobs.wait_status("j", lambda status: "nodes" not in status, "no suspects")
