"""Jobs whose programs no agent runs, on a real control plane: the test is their kubelet."""

from typing import Any

import pytest

from localcluster.kubeapi import Object
from tests.operator.rig import Jobs
from tests.specs import OWN_PROGRAM
from tests.waiting import wait_until
from tpujob_operator.core.kinds import JOB_SET, POD, SECRET, SERVICE

pytestmark = pytest.mark.control_plane


def test_pods_that_end_badly_make_new_attempts_within_the_budgets(jobs: Jobs) -> None:
    """Each loss has the cause that Kubernetes tells; the one that spends a budget ends the job."""
    recovery = {"pods": "Recreate", "budgets": {"userError": 0}}
    jobs.create("j", **OWN_PROGRAM, recovery=recovery)
    pods = _run(jobs, attempt=1)
    assert [jobs.find(SECRET, jobs.secret_of("j")), jobs.find(SERVICE, jobs.service_of("j"))] == [
        None,
        None,
    ]
    _fail(jobs, pods[1], 137, reason="OOMKilled")
    _wait_incident(jobs, 1, "process", "out of memory")
    jobs.end_pods("j")
    pods = _run(jobs, attempt=2)
    recovered = jobs.status("j")["incidents"][0]
    assert (recovered["rung"], recovered["slice"], recovered["node"]) == ("R3", 1, "node0")
    jobs.delete(POD, pods[0]["metadata"]["name"])
    _wait_incident(jobs, 2, "preemption", pods[0]["metadata"]["name"])
    jobs.end_pods("j")
    pods = _run(jobs, attempt=3)
    _fail(jobs, pods[0], 3, reason="Error", message="KeyError: 'x'")
    message = jobs.wait_condition("j", "Failed", "BudgetSpent")
    assert "budget userError spent: 1 restarts, 0 allowed" in message
    assert "KeyError: 'x'" in message
    jobs.end_pods("j")
    wait_until(lambda: not jobs.all(JOB_SET, "j"), "end of all JobSets")


def test_job_succeeds_when_all_pods_have(jobs: Jobs) -> None:
    """Without a coordinator it is JobSet that says when the job is done."""
    jobs.create("j", **OWN_PROGRAM, recovery={"pods": "Recreate"})
    for pod in _run(jobs, attempt=1):
        jobs.set_pod(pod["metadata"]["name"], {"phase": "Succeeded"})
    jobs.wait_condition("j", "Succeeded", says="of all hosts have ended well")
    status = jobs.status("j")
    assert (status["attempt"], status["incidents"]) == (1, [])


def _run(jobs: Jobs, attempt: int) -> list[Object]:
    """Let the pods of an attempt run, and wait until the job does; in the order of slices."""
    jobs.wait(JOB_SET, f"j-{attempt}")
    pods = jobs.run_pods("j", 2)
    jobs.wait_status("j", lambda status: status["state"] == "Running", f"attempt {attempt} runs")
    return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))


def _fail(jobs: Jobs, pod: Object, code: int, **terminated: Any) -> None:
    """Report a pod whose program has ended, as a kubelet does."""
    state = {"terminated": {"exitCode": code, **terminated}}
    container = {
        "name": "main",
        "image": "mine",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": state,
    }
    status = {"phase": "Failed", "containerStatuses": [container]}
    jobs.set_pod(pod["metadata"]["name"], status)


def _wait_incident(jobs: Jobs, number: int, cause: str, says: str) -> None:
    def is_known(status: Object) -> bool:
        found = status["incidents"]
        if len(found) < number:
            return False
        return found[-1]["cause"] == cause and says in found[-1]["message"]

    jobs.wait_status("j", is_known, f"incident {number}: {cause}, {says}")
