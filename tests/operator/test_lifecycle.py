"""A job's life on a real control plane: made, suspended, finished, deleted."""

import pytest

from tests.operator.rig import CHILDREN, Jobs, OperatorProcess
from tests.waiting import wait_until
from tpujob_operator.core.kinds import JOB, JOB_SET, POD, SECRET, SERVICE, TPU_TRAINING_JOB

pytestmark = pytest.mark.control_plane


def test_job_becomes_its_objects(jobs: Jobs) -> None:
    """A job gets Secret, Service and JobSet, each owned by it, and pods in the end."""
    job = jobs.create("j")
    made = ((SECRET, jobs.secret_of("j")), (SERVICE, jobs.service_of("j")), (JOB_SET, "j-1"))
    for kind, name in made:
        owners = jobs.wait(kind, name)["metadata"]["ownerReferences"]
        assert [owner["uid"] for owner in owners] == [job["metadata"]["uid"]]
    jobs.wait_pods("j", 3)
    jobs.wait_condition("j", "Admitted")
    assert jobs.status("j")["attempt"] == 1
    assert jobs.status("j")["observedGeneration"] == 1


def test_unschedulable_pods_are_told(jobs: Jobs) -> None:
    """Without fitting nodes the job is Pending, and says in the scheduler's words why."""
    jobs.create("j")
    # The scheduler may look at the coordinator first, and workers are told of when it gets there.
    words = "no node of the cluster belongs to a slice tpu-v5-lite-podslice 2x2"
    message = jobs.wait_condition("j", "Progressing", "Unschedulable", "False", says=words)
    assert "nodes are available" in message
    assert jobs.status("j")["state"] == "Pending"


def test_refused_pods_are_told(jobs: Jobs) -> None:
    """Without the service account there are no pods, and only the Job's events say why."""
    trainer = {"config": {"steps": 1}, "serviceAccountName": "nobody"}
    jobs.create("j", trainer=trainer)
    words = 'serviceaccount "nobody" not found. Create the service account'
    jobs.wait_condition("j", "Stalled", "PodsRefused", says=words)


def test_suspend_removes_pods_and_resume_brings_them_back(jobs: Jobs) -> None:
    """``spec.suspend`` reaches the JobSet both ways, and the time counts as suspended."""
    jobs.create("j")
    jobs.wait_pods("j", 3)
    jobs.change("j", suspend=True)
    jobs.wait_condition("j", "Suspended", "SuspendedBySpec")
    jobs.end_pods("j")
    assert jobs.status("j")["state"] == "Suspended"
    jobs.change("j", suspend=False)
    jobs.wait_pods("j", 3)
    jobs.wait_condition("j", "Suspended", "NotSuspended", "False")
    status = jobs.wait_status(
        "j", lambda status: status["goodput"]["seconds"]["suspended"] > 0, "suspended time"
    )
    assert status["attempt"] == 1
    jobs.wait_event("j", "Resumed")


def test_job_that_starts_suspended_has_no_pods(jobs: Jobs) -> None:
    """A job created suspended gets its JobSet, but no pod before it is resumed."""
    jobs.create("j", suspend=True)
    assert jobs.wait(JOB_SET, "j-1")["spec"]["suspend"] is True
    jobs.wait_condition("j", "Suspended")
    assert jobs.all(POD, "j") == []
    jobs.change("j", suspend=False)
    jobs.wait_pods("j", 3)


def test_changed_spec_makes_a_new_attempt(jobs: Jobs) -> None:
    """Another number of slices: the JobSet goes, one of the new shape comes, and it is told."""
    jobs.create("j")
    jobs.wait_pods("j", 3)
    first = jobs.wait(JOB_SET, "j-1")
    jobs.change("j", slices=1)
    jobs.wait_gone(JOB_SET, "j-1", first["metadata"]["uid"])
    jobs.wait(JOB_SET, "j-2")
    jobs.wait_pods("j", 2)
    jobs.wait_event("j", "SpecChanged")
    assert jobs.status("j")["attempt"] == 2
    assert jobs.status("j")["incidents"] == []


def test_lost_pod_brings_its_slice_back_at_once(jobs: Jobs) -> None:
    """A deleted pod costs its slice's Job, once; the other slice and the coordinator stay."""
    jobs.create("j")
    pods = {pod["metadata"]["name"][:-6]: pod for pod in jobs.run_pods("j", 3)}
    lost = pods["j-1-slice-1-0"]
    before = {job["metadata"]["name"]: job["metadata"]["uid"] for job in jobs.all(JOB, "j")}
    jobs.delete(POD, lost["metadata"]["name"])
    jobs.wait_gone(JOB, "j-1-slice-1", before["j-1-slice-1"])
    jobs.remove_pod(lost["metadata"]["name"])
    jobs.wait_pods("j", 3)
    after = {job["metadata"]["name"]: job["metadata"]["uid"] for job in jobs.all(JOB, "j")}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"j-1-slice-1"}
    jobs.wait_event("j", "SliceRestarted")
    assert jobs.events("j").count("SliceRestarted") == 1


def test_lost_coordinator_is_made_anew(jobs: Jobs) -> None:
    """A deleted coordinator pod costs only the coordinator's Job."""
    jobs.create("j")
    pods = {pod["metadata"]["name"][:-6]: pod for pod in jobs.run_pods("j", 3)}
    before = {job["metadata"]["name"]: job["metadata"]["uid"] for job in jobs.all(JOB, "j")}
    jobs.delete(POD, pods["j-1-coordinator-0-0"]["metadata"]["name"])
    jobs.wait_gone(JOB, "j-1-coordinator-0", before["j-1-coordinator-0"])
    jobs.wait(JOB, "j-1-coordinator-0")
    after = {job["metadata"]["name"]: job["metadata"]["uid"] for job in jobs.all(JOB, "j")}
    assert before["j-1-slice-0"] == after["j-1-slice-0"]


def test_image_that_cannot_be_pulled_is_told(jobs: Jobs) -> None:
    """The kubelet's words about an image reach the job's Stalled condition, and leave it again."""
    jobs.create("j")
    pod = next(p for p in jobs.wait_pods("j", 3) if "slice-0" in p["metadata"]["name"])
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "nowhere/x:1"'}
    container = {
        "name": "trainer", "image": "nowhere/x:1", "imageID": "", "ready": False,
        "restartCount": 0, "state": {"waiting": waiting},
    }  # fmt: skip
    jobs.set_pod(pod["metadata"]["name"], {"containerStatuses": [container]})
    message = jobs.wait_condition("j", "Stalled", "ImageUnavailable")
    assert "nowhere/x:1" in message
    assert "imagePullSecrets" in message
    container = {**container, "state": {"running": {}}, "ready": True}
    jobs.set_pod(pod["metadata"]["name"], {"containerStatuses": [container]})
    jobs.wait_condition("j", "Stalled", "NotStalled", "False")


def test_completed_jobset_means_success_and_is_final(jobs: Jobs) -> None:
    """When the coordinator has ended well the job has succeeded, and never runs again."""
    jobs.create("j")
    pods = jobs.run_pods("j", 3)
    coordinator = next(pod for pod in pods if "coordinator" in pod["metadata"]["name"])
    jobs.set_pod(coordinator["metadata"]["name"], {"phase": "Succeeded"})
    jobs.wait_condition("j", "Succeeded", "Completed")
    status = jobs.status("j")
    assert status["state"] == "Succeeded"
    assert sum(status["goodput"]["seconds"].values()) == pytest.approx(
        status["goodput"]["wallSeconds"], abs=0.001
    )
    assert jobs.condition("j", "Ready")["status"] == "True"
    jobs.delete(JOB_SET, "j-1", propagationPolicy="Background")
    jobs.wait_gone(JOB_SET, "j-1")
    jobs.change("j", ttlSecondsAfterFinished=100_000)  # makes the operator look again
    assert jobs.find(JOB_SET, "j-1") is None


def test_finished_job_is_deleted_after_its_time_to_live(jobs: Jobs) -> None:
    """``ttlSecondsAfterFinished`` takes the job away, and so all that it owns."""
    jobs.create("j", ttlSecondsAfterFinished=0)
    for pod in jobs.run_pods("j", 3):
        if "coordinator" in pod["metadata"]["name"]:
            jobs.set_pod(pod["metadata"]["name"], {"phase": "Succeeded"})
    jobs.wait_gone(TPU_TRAINING_JOB, "j")


def test_deadline_fails_the_job_and_ends_its_pods(jobs: Jobs) -> None:
    """After ``activeDeadlineSeconds`` the job has failed, and its JobSet is gone."""
    jobs.create("j", activeDeadlineSeconds=1)
    message = jobs.wait_condition("j", "Failed", "DeadlineExceeded")
    assert "activeDeadlineSeconds" in message
    jobs.wait_gone(JOB_SET, "j-1")
    assert jobs.status("j")["state"] == "Failed"


def test_failed_jobset_is_followed_by_another_attempt(jobs: Jobs) -> None:
    """A JobSet that has failed is removed, and only then the next attempt begins."""
    jobs.create("j")
    jobs.wait_pods("j", 3)
    failed = {
        "type": "Failed", "status": "True", "reason": "FailedJobs", "message": "a job failed",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    path = JOB_SET.path(jobs.namespace, "j-1", "status")
    jobs.api.merge(path, {"status": {"conditions": [failed]}})
    jobs.wait_event("j", "AttemptFailed")  # the condition lasts a second only
    jobs.wait_gone(JOB_SET, "j-1")
    jobs.wait(JOB_SET, "j-2")
    assert jobs.status("j")["attempt"] == 2


def test_two_jobs_do_not_disturb_each_other(jobs: Jobs) -> None:
    """Two jobs run side by side; what happens to one does not touch the other."""
    jobs.create("a")
    jobs.create("b")
    jobs.wait_pods("a", 3)
    jobs.wait_pods("b", 3)
    before = jobs.wait(JOB_SET, "b-1")["metadata"]["uid"]
    jobs.change("a", suspend=True)
    jobs.wait_condition("a", "Suspended")
    assert jobs.condition("b", "Suspended")["status"] == "False"
    assert jobs.wait(JOB_SET, "b-1")["metadata"]["uid"] == before


def test_idle_job_is_not_written(jobs: Jobs, operator: OperatorProcess) -> None:
    """A job to which nothing happens keeps its resourceVersion while others are served."""
    jobs.create("idle", suspend=True)
    jobs.wait_condition("idle", "Suspended")
    wait_until(
        lambda: (jobs.find(JOB_SET, "idle-1") or {}).get("status", {}).get("conditions"),
        "JobSet has settled",
    )
    before = jobs.wait(TPU_TRAINING_JOB, "idle")["metadata"]["resourceVersion"]
    jobs.create("other")
    jobs.wait_pods("other", 3)
    jobs.delete(TPU_TRAINING_JOB, "other")
    wait_until(lambda: not jobs.all(POD, "other"), "other is gone")
    assert jobs.wait(TPU_TRAINING_JOB, "idle")["metadata"]["resourceVersion"] == before
    assert operator.get("probes", "/healthz") == "ok\n"


def test_metrics_add_up_and_go_with_their_job(jobs: Jobs, operator: OperatorProcess) -> None:
    """Every type of time has a series as long as its job exists."""
    jobs.create("measured")
    jobs.wait_pods("measured", 3)
    label = f'job="measured",namespace="{jobs.namespace}"'
    text = operator.get("metrics", "/metrics")
    assert text.count(f"tpujob_time_seconds_total{{{label}") == 18
    assert f'tpujob_info{{accelerator="v5e",{label}' in text
    assert "tpujob_operator_queue_depth" in text
    jobs.delete(TPU_TRAINING_JOB, "measured")
    wait_until(lambda: label not in operator.get("metrics", "/metrics"), "series are gone")


def test_deleted_job_leaves_nothing(jobs: Jobs) -> None:
    """Deleting a job needs no operator's help and takes everything with it."""
    jobs.create("j")
    jobs.wait_pods("j", 3)
    service, secret = jobs.service_of("j"), jobs.secret_of("j")
    jobs.delete(TPU_TRAINING_JOB, "j")
    jobs.wait_gone(TPU_TRAINING_JOB, "j")
    for kind in CHILDREN:
        wait_until(lambda kind=kind: not jobs.all(kind, "j"), f"no {kind.plural}")  # type: ignore[misc] # bound here
    jobs.wait_gone(SERVICE, service)
    jobs.wait_gone(SECRET, secret)
