"""The operator and the cluster under faults: killed, blind, without JobSet."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from tests.conftest import start_control_plane
from tests.operator.rig import Jobs, OperatorProcess, running
from tests.waiting import wait_until
from tpujob_operator.core.kinds import JOB, JOB_SET, SECRET, SERVICE, TPU_TRAINING_JOB

pytestmark = pytest.mark.control_plane
_JOBSET_CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/jobsets.jobset.x-k8s.io"


def test_operator_killed_midway_converges_without_duplicates(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path
) -> None:
    """A job that was half made when the operator died is finished by the next one, once."""
    own_jobs.create("j")
    with running(control_plane, tmp_path, own_jobs.namespace) as operator:
        own_jobs.wait(SECRET, own_jobs.secret_of("j"))
        operator.kill()
    with running(control_plane, tmp_path, own_jobs.namespace):
        own_jobs.wait_pods("j", 3)
        own_jobs.wait_condition("j", "Admitted")
    assert [item["metadata"]["name"] for item in own_jobs.all(JOB_SET, "j")] == ["j-1"]
    assert own_jobs.status("j")["attempt"] == 1


def test_job_goes_on_while_the_operator_is_away(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path
) -> None:
    """What happens without an operator is seen, accounted and answered by the next one."""
    own_jobs.create("j")
    with running(control_plane, tmp_path, own_jobs.namespace) as operator:
        own_jobs.run_pods("j", 3)
        before = own_jobs.wait_status(
            "j", lambda status: status.get("slices", {}).get("running") == 2, "two slices"
        )
        operator.kill()
    jobset = own_jobs.wait(JOB_SET, "j-1")["metadata"]["uid"]
    own_jobs.change("j", suspend=True)
    with running(control_plane, tmp_path, own_jobs.namespace):
        own_jobs.wait_condition("j", "Suspended")
        own_jobs.end_pods("j")
    assert own_jobs.wait(JOB_SET, "j-1")["metadata"]["uid"] == jobset
    after = own_jobs.status("j")
    assert after["goodput"]["wallSeconds"] > before["goodput"]["wallSeconds"]
    for kind, seconds in before["goodput"]["seconds"].items():
        assert after["goodput"]["seconds"][kind] >= seconds


def test_restarted_operator_writes_nothing_to_a_job_at_rest(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path
) -> None:
    """An operator that starts anew looks at all jobs, and leaves those at rest alone."""
    own_jobs.create("idle", suspend=True)
    with running(control_plane, tmp_path, own_jobs.namespace):
        own_jobs.wait_condition("idle", "Suspended")
        own_jobs.wait(JOB_SET, "idle-1")
    versions = []
    for _ in range(2):  # the first one may have something to finish
        with running(control_plane, tmp_path, own_jobs.namespace) as operator:
            wait_until(lambda op=operator: _has_looked(op), "a pass")  # type: ignore[misc] # bound here
            assert operator.stop() == 0
            assert "Traceback" not in operator.life
        versions.append(own_jobs.wait(TPU_TRAINING_JOB, "idle")["metadata"]["resourceVersion"])
    assert versions[0] == versions[1]


def _has_looked(operator: OperatorProcess) -> bool:
    return "tpujob_operator_reconciles_total{" in operator.get("metrics", "/metrics")


def test_operator_stops_in_order(control_plane: Cluster, own_jobs: Jobs, tmp_path: Path) -> None:
    """SIGTERM ends the operator with success, within a few seconds."""
    own_jobs.create("j")
    with running(control_plane, tmp_path, own_jobs.namespace) as operator:
        own_jobs.wait(JOB_SET, "j-1")
        assert operator.stop() == 0


def test_namesake_of_a_deleted_job_starts_anew(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path
) -> None:
    """A job created under the name of one just deleted gets objects of its own."""
    with running(control_plane, tmp_path, own_jobs.namespace):
        own_jobs.create("j")
        own_jobs.wait_pods("j", 3)
        old = own_jobs.wait(JOB_SET, "j-1")["metadata"]["uid"]
        own_jobs.delete(TPU_TRAINING_JOB, "j")
        own_jobs.wait_gone(TPU_TRAINING_JOB, "j")
        job = own_jobs.create("j")
        own_jobs.wait_gone(JOB_SET, "j-1", old)
        owners = own_jobs.wait(JOB_SET, "j-1")["metadata"]["ownerReferences"]
        assert [owner["uid"] for owner in owners] == [job["metadata"]["uid"]]
        own_jobs.wait_pods("j", 3)


def test_foreign_jobset_of_the_same_name_is_left_alone(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path
) -> None:
    """Somebody else's JobSet is not taken over; the job says what stands in its way."""
    template = {
        "spec": {
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "c", "image": "x"}],
                }
            }
        }
    }
    foreign = {
        "apiVersion": JOB_SET.api_version,
        "kind": JOB_SET.kind,
        "metadata": {"name": "j-1", "namespace": own_jobs.namespace},
        "spec": {"replicatedJobs": [{"name": "mine", "replicas": 1, "template": template}]},
    }
    own_jobs.api.apply(foreign)
    with running(control_plane, tmp_path, own_jobs.namespace):
        own_jobs.create("j")
        message = own_jobs.wait_condition("j", "Stalled", "Refused")
    assert "JobSet j-1" in message
    assert not own_jobs.wait(JOB_SET, "j-1")["metadata"].get("ownerReferences")


def test_refused_objects_are_told_and_tried_again(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path
) -> None:
    """A quota that forbids the Service is told in its own words; lifting it lets the job go on."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": own_jobs.namespace},
        "spec": {"hard": {"count/services": "0"}},
    }
    own_jobs.api.apply(quota)
    path = f"/api/v1/namespaces/{own_jobs.namespace}/resourcequotas/none"
    wait_until(lambda: own_jobs.api.get(path).get("status", {}).get("hard"), "quota in force")
    with running(control_plane, tmp_path, own_jobs.namespace):
        own_jobs.create("j")
        message = own_jobs.wait_condition("j", "Stalled", "Refused")
        assert "exceeded quota" in message
        own_jobs.api.request("DELETE", path)
        own_jobs.wait(SERVICE, own_jobs.service_of("j"))
        own_jobs.wait(JOB, "j-1-slice-0")
        own_jobs.wait_condition("j", "Stalled", "NotStalled", "False")


@pytest.fixture
def without_jobset() -> Iterator[Cluster]:
    """A control plane of its own from which JobSet has been removed."""
    with start_control_plane(f"test-nojobset-{os.getpid()}") as cluster:
        yield cluster


def test_job_waits_in_words_for_jobset(without_jobset: Cluster, tmp_path: Path) -> None:
    """Without JobSet the job says what to install, and starts by itself once it is there."""
    cluster = without_jobset
    crd = cluster.api.get(_JOBSET_CRD)
    cluster.api.request("DELETE", _JOBSET_CRD)
    jobs = Jobs(cluster, "default")
    wait_until(lambda: not _is_jobset_served(cluster), "JobSet is gone")
    jobs.create("j")
    with running(cluster, tmp_path, "default"):
        message = jobs.wait_condition("j", "Stalled", "JobSetMissing")
        assert "Install JobSet" in message
        again = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": crd["metadata"]["name"]},
            "spec": crd["spec"],
        }
        cluster.api.apply(again)
        jobs.wait(JOB_SET, "j-1")
        jobs.wait_condition("j", "Stalled", "NotStalled", "False")


def _is_jobset_served(cluster: Cluster) -> bool:
    groups = cluster.api.get("/apis")["groups"]
    return any(group["name"] == JOB_SET.group for group in groups)
