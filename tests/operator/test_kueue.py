"""Jobs in queues, with the real Kueue: it gives quota, and takes it back."""

from __future__ import annotations

import contextlib
import io
import json
import os
import uuid
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster import host, kueue, kwok
from localcluster.cluster import Cluster
from tests.conftest import make_namespace, start_control_plane
from tests.operator.nodes import remove_node, simulate_pools
from tests.operator.rig import Jobs, running
from tests.specs import OWN_PROGRAM
from tests.waiting import wait_until
from tpujob_operator.cli.__main__ import main
from tpujob_operator.core.kinds import JOB_SET, POD, TPU_TRAINING_JOB, WORKLOADS, Kind
from tpujob_operator.core.manifests.names import SLICE_INDEX_LABEL

pytestmark = [
    pytest.mark.control_plane,
    pytest.mark.skipif(bool(host.why_not(full=True)), reason=str(host.why_not(full=True))),
]

ROOT = Path(__file__).parents[2]
#: One job of two slices of four chips.
_CHIPS = 8
_PODS = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A control plane with Kueue; where a test adds nodes, kwok plays their kubelets."""
    made = start_control_plane(f"kueue-{os.getpid()}", kwok=1, topology="of-no-job")
    try:
        remove_node(made, kwok.CPU_NODE)  # tests run their pods themselves
        made.add_kueue()
        yield made
    finally:
        made.down()


@pytest.fixture
def jobs(cluster: Cluster, tmp_path: Path) -> Iterator[Jobs]:
    """A namespace with a queue that has the chips of one job, and an operator for it."""
    name = f"queue-{uuid.uuid4().hex[:8]}"
    make_namespace(cluster, name)
    _apply(cluster, "ResourceFlavor", name)
    _add_queue(cluster, name, "research", {name: _CHIPS})
    with running(cluster, tmp_path, name):
        yield Jobs(cluster, name)


def _add_queue(
    cluster: Cluster, namespace: str, name: str, chips: dict[str, int], **spec: Any
) -> None:
    """A queue of a namespace, with so many chips of each flavor and enough of the rest."""
    flavors = []
    for flavor, number in chips.items():
        quota = {"google.com/tpu": number, "cpu": 100, "memory": "100Gi"}
        resources = [{"name": key, "nominalQuota": value} for key, value in quota.items()]
        flavors.append({"name": flavor, "resources": resources})
    _apply(
        cluster,
        "ClusterQueue",
        f"{namespace}-{name}",
        namespaceSelector={},
        resourceGroups=[
            {"coveredResources": ["google.com/tpu", "cpu", "memory"], "flavors": flavors}
        ],
        preemption={"withinClusterQueue": "LowerPriority"},
        **spec,
    )
    _apply(cluster, "LocalQueue", name, namespace, clusterQueue=f"{namespace}-{name}")


def _apply(cluster: Cluster, kind: str, name: str, namespace: str = "", **spec: Any) -> None:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    thing = {"apiVersion": kueue.API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
    cluster.api.apply(thing)


def wait_state(jobs: Jobs, name: str, state: str) -> dict[str, Any]:
    """Wait for a job's state."""
    return jobs.wait_status(name, lambda status: status.get("state") == state, f"{name} {state}")


def test_a_job_waits_until_another_one_has_gone(jobs: Jobs) -> None:
    """Status has Kueue's own words; the time is booked as queued."""
    jobs.create("a", queue="research")
    jobs.wait_pods("a", _PODS)
    jobs.wait_condition("a", "Admitted", "Admitted")
    jobs.create("b", queue="research")
    wait_state(jobs, "b", "Queued")
    wait_until(
        lambda: "insufficient unused quota" in jobs.condition("b", "Admitted")["message"],
        "Kueue's words",
    )
    assert jobs.all(JOB_SET, "b")[0]["spec"]["suspend"] is True
    jobs.delete(TPU_TRAINING_JOB, "a")
    jobs.wait_pods("b", _PODS)
    status = wait_state(jobs, "b", "Pending")
    assert status["goodput"]["seconds"]["queued"] > 0
    jobs.wait_event("b", "Admitted")


@pytest.mark.parametrize(("slices", "level"), [(1, "ok"), (2, "bad")])
def test_doctor_follows_a_queue_to_its_chips(
    cluster: Cluster, jobs: Jobs, tmp_path: Path, slices: int, level: str
) -> None:
    """LocalQueue, ClusterQueue and flavor as the real Kueue serves them."""
    raw = yaml.safe_load((ROOT / "examples" / "demo.yaml").read_text())
    raw["spec"] |= {"slices": slices, "queue": "research"}
    path, said = tmp_path / "job.yaml", io.StringIO()
    path.write_text(yaml.safe_dump(raw))
    access = ["-n", jobs.namespace, "--kubeconfig", str(cluster.kubeconfig)]
    with contextlib.redirect_stdout(said):
        main(["doctor", "-f", str(path), "-o", "json", *access])
    (queue,) = (x for x in json.loads(said.getvalue()) if x["what"] == "queue research")
    assert queue["level"] == level
    assert f"{_CHIPS} chips in flavor {jobs.namespace}" in queue["found"]


def test_a_more_urgent_job_takes_the_quota(jobs: Jobs) -> None:
    """The other one waits again, in the same attempt, and no budget of it is charged."""
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    body = {**urgent, "metadata": {"name": jobs.namespace}}
    jobs.api.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
    jobs.create("a", queue="research")
    jobs.run_pods("a", _PODS)
    jobs.create("b", queue="research", priorityClassName=jobs.namespace)
    status = wait_state(jobs, "a", "Queued")
    assert all(not budget["used"] for budget in status["budgets"].values())
    assert status["incidents"] == []
    jobs.wait_event("a", "Evicted")
    jobs.end_pods("a")
    jobs.wait_pods("b", _PODS)
    jobs.delete(TPU_TRAINING_JOB, "b")
    jobs.wait_pods("a", _PODS)
    assert jobs.status("a")["attempt"] == 1


def test_a_job_whose_pods_are_recreated_loses_nothing_by_an_eviction(jobs: Jobs) -> None:
    """It is no incident though nobody but its pods tells of it; the same attempt goes on."""
    jobs.create("a", **OWN_PROGRAM, recovery={"pods": "Recreate"}, queue="research")
    _run_recreated(jobs)
    (workload,) = jobs.all(WORKLOADS[0])
    _activate(jobs, workload, is_active=False)
    status = wait_state(jobs, "a", "Queued")
    jobs.end_pods("a")
    assert (status["incidents"], status["attempt"]) == ([], 1)
    _activate(jobs, workload, is_active=True)
    _run_recreated(jobs)
    status = jobs.status("a")
    assert (status["incidents"], status["attempt"]) == ([], 1)
    assert not any(budget["used"] for budget in status["budgets"].values())
    jobs.wait_event("a", "Evicted")


def _run_recreated(jobs: Jobs) -> None:
    jobs.run_pods("a", 2)
    wait_state(jobs, "a", "Running")


def _activate(jobs: Jobs, workload: dict[str, Any], *, is_active: bool) -> None:
    """Have Kueue evict a workload, or consider it again, as an administrator does."""
    path = WORKLOADS[0].path(jobs.namespace, workload["metadata"]["name"])
    jobs.api.merge(path, {"spec": {"active": is_active}})


def test_a_suspended_job_gives_up_its_place(jobs: Jobs) -> None:
    """And waits for another one when it is resumed."""
    jobs.create("a", queue="research")
    jobs.wait_pods("a", _PODS)
    jobs.change("a", suspend=True)
    wait_state(jobs, "a", "Suspended")
    wait_until(lambda: not jobs.all(WORKLOADS[0]), "no place in the queue")
    jobs.create("b", queue="research")
    jobs.wait_pods("b", _PODS)
    jobs.change("a", suspend=False)
    wait_state(jobs, "a", "Queued")
    assert jobs.status("a")["attempt"] == 2


def test_a_queue_that_is_not_there_is_named(jobs: Jobs) -> None:
    """In Kueue's words."""
    jobs.create("a", queue="nowhere")
    wait_until(
        lambda: "nowhere doesn't exist" in jobs.condition("a", "Admitted").get("message", ""),
        "the queue's name",
    )


_POOL = "cloud.google.com/gke-nodepool"
_HOSTS = 2
#: Slices of 8 chips on 2 hosts, a node pool for each.
_SLICES_OF_POOLS = {"topology": "2x4", "queue": "pools", "queueTopologyLabel": _POOL}


@pytest.fixture
def pools(cluster: Cluster, jobs: Jobs) -> dict[str, str]:
    """The pool of each node of two slices, and of half a third; the queue ``pools`` has them."""
    name, accelerator = jobs.namespace, "tpu-v5-lite-podslice"
    made = simulate_pools(cluster, name, accelerator, "2x4", pools=2, hosts=_HOSTS)
    made |= simulate_pools(cluster, f"{name}-half", accelerator, "2x4", pools=1, hosts=1)
    levels = [{"nodeLabel": label} for label in (_POOL, "kubernetes.io/hostname")]
    body = {
        "apiVersion": kueue.API_VERSION,
        "kind": "Topology",
        "metadata": {"name": name},
        "spec": {"levels": levels},
    }
    cluster.api.request("POST", f"/apis/{kueue.API_VERSION}/topologies", body)
    labels = {"cloud.google.com/gke-tpu-accelerator": accelerator}
    flavor = f"{name}-slices"
    _apply(cluster, "ResourceFlavor", flavor, nodeLabels=labels, topologyName=name)
    _add_queue(cluster, name, "pools", {flavor: 24, name: 0})
    return made


def _whole_pools(jobs: Jobs, job: str, pools: dict[str, str]) -> list[str]:
    """The pool of each slice whose hosts all have nodes of one."""
    found = defaultdict(list)
    for pod in jobs.all(POD, job):
        if node := pod["spec"].get("nodeName"):
            found[pod["metadata"]["labels"][SLICE_INDEX_LABEL]].append(pools[node])
    return [used[0] for used in found.values() if used == [used[0]] * _HOSTS]


def test_kueue_gives_each_slice_a_pool(jobs: Jobs, pools: dict[str, str]) -> None:
    """And no part of a pool: another job waits, although there are chips enough for it."""
    jobs.create("a", slices=2, **_SLICES_OF_POOLS)
    used = wait_until(
        lambda: found if len(found := _whole_pools(jobs, "a", pools)) == 2 else None,
        "nodes of all hosts",
    )
    assert len(set(used)) == 2
    jobs.create("b", slices=1, **_SLICES_OF_POOLS)
    jobs.wait_condition("b", "Admitted", status="False", says="couldn't assign flavors")
    assert jobs.all(POD, "b") == []
    jobs.delete(TPU_TRAINING_JOB, "a")
    wait_until(lambda: _whole_pools(jobs, "b", pools), "a pool for the other job")


def test_a_queue_without_topology_is_told(jobs: Jobs) -> None:
    """In Kueue's words: it admits no job that asks for one."""
    jobs.create("a", queue="research", queueTopologyLabel=_POOL)
    jobs.wait_condition("a", "Admitted", status="False", says="does not support TopologyAware")


#: What a cluster autoscaler answers; GKE's for TPUs runs nowhere else, so tests play it.
_REQUEST = Kind("autoscaling.x-k8s.io", "v1", "provisioningrequests", "ProvisioningRequest")
_CONSUMES = "autoscaling.x-k8s.io/consume-provisioning-request"
_FLEX_START = {"queue": "flex", "provisioning": {"model": "FlexStart"}}


@pytest.fixture
def flex(cluster: Cluster, jobs: Jobs) -> Jobs:
    """The namespace with a queue whose chips have to be provisioned, in two tries at most."""
    name, group = jobs.namespace, "kueue.x-k8s.io"
    config = "ProvisioningRequestConfig"
    _apply(
        cluster,
        config,
        name,
        provisioningClassName="queued-provisioning.gke.io",
        managedResources=["google.com/tpu"],
        parameters={"maxRunDurationSeconds": "86400"},
        retryStrategy={"backoffLimitCount": 1, "backoffBaseSeconds": 1},
    )
    _apply(
        cluster,
        "AdmissionCheck",
        name,
        controllerName=f"{group}/provisioning-request",
        parameters={"apiGroup": group, "kind": config, "name": name},
    )
    checks = {"admissionChecks": [{"name": name}]}
    _add_queue(cluster, name, "flex", {name: _CHIPS}, admissionChecksStrategy=checks)
    return jobs


def _wait_request(jobs: Jobs) -> str:
    """The name of the request that nobody has answered yet."""

    def unanswered() -> list[str]:
        return [item["metadata"]["name"] for item in jobs.all(_REQUEST) if "status" not in item]

    return wait_until(unanswered, "a request")[0]


def _answer(jobs: Jobs, request: str, message: str, *kinds: str, status: str = "True") -> None:
    """Write conditions of a request, of one status, beside that it is accepted."""
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    said = {"reason": "Played", "message": message, "lastTransitionTime": now}
    conditions = [{"type": kind, "status": status, **said} for kind in kinds]
    conditions.append({"type": "Accepted", "status": "True", **said})
    path = _REQUEST.path(jobs.namespace, request, "status")
    jobs.api.merge(path, {"status": {"conditions": conditions}})


def _wait_words(jobs: Jobs, words: str) -> None:
    jobs.wait_condition("a", "Admitted", "Queued", status="False", says=words)


def _check_nothing_is_charged(jobs: Jobs) -> None:
    status = jobs.status("a")
    assert (status["state"], status["attempt"], status["incidents"]) == ("Queued", 1, [])
    assert not any(budget["used"] for budget in status["budgets"].values())


def test_a_job_waits_until_its_nodes_are_provisioned(flex: Jobs) -> None:
    """Its pods then name the request, and the operator leaves Kueue's words on the JobSet."""
    flex.create("a", **_FLEX_START)
    request = _wait_request(flex)
    _wait_words(flex, "is Pending")
    _answer(flex, request, "expected at noon", "Provisioned", status="False")
    _wait_words(flex, "expected at noon")
    _check_nothing_is_charged(flex)
    assert flex.all(POD, "a") == []
    _answer(flex, request, "all there", "Provisioned")
    flex.wait_pods("a", _PODS)
    (before,) = flex.all(JOB_SET)
    flex.run_pods("a", _PODS)
    wait_state(flex, "a", "Starting")
    named = [pod["metadata"]["annotations"].get(_CONSUMES, "") for pod in flex.all(POD, "a")]
    assert sorted(named) == ["", request, request]  # the coordinator needs no chips
    (after,) = flex.all(JOB_SET)
    assert (after["metadata"]["uid"], after["spec"]) == (before["metadata"]["uid"], before["spec"])
    assert flex.status("a")["attempt"] == 1


def test_a_request_that_fails_charges_nothing(flex: Jobs) -> None:
    """Kueue asks again; when it has given up, the job says how to ask anew."""
    flex.create("a", **_FLEX_START)
    _answer(flex, _wait_request(flex), "no v5e in the zone", "Failed")
    request = _wait_request(flex)
    _wait_words(flex, "no v5e in the zone")
    _check_nothing_is_charged(flex)
    _answer(flex, request, "still no v5e", "Failed")
    _wait_words(flex, "suspend and resume")
    _check_nothing_is_charged(flex)
    flex.change("a", suspend=True)
    wait_state(flex, "a", "Suspended")
    flex.change("a", suspend=False)
    _answer(flex, _wait_request(flex), "all there", "Provisioned")
    flex.wait_pods("a", _PODS)


def test_a_job_whose_nodes_are_taken_back_says_what_to_do(flex: Jobs) -> None:
    """Kueue asks for no others by itself; no budget is charged."""
    flex.create("a", **_FLEX_START)
    request = _wait_request(flex)
    _answer(flex, request, "all there", "Provisioned")
    flex.run_pods("a", _PODS)
    wait_state(flex, "a", "Starting")
    _answer(flex, request, "the run time is over", "Provisioned", "CapacityRevoked")
    _wait_words(flex, "suspend and resume")
    flex.end_pods("a")
    _check_nothing_is_charged(flex)
    flex.wait_event("a", "Evicted")


def test_without_kueue_the_job_says_what_to_do(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path
) -> None:
    """The API server does not know its kinds."""
    with running(control_plane, tmp_path, own_jobs.namespace):
        own_jobs.create("a", queue="research")
        wait_until(
            lambda: "Install Kueue" in own_jobs.condition("a", "Admitted").get("message", ""),
            "advice",
        )
        assert own_jobs.status("a")["state"] == "Queued"
