"""A preflight on a real control plane: the Job is made and run, and its pod's words count."""

from __future__ import annotations

from typing import Any

import pytest

from tests.operator.rig import Jobs
from tpujob_agent.preflight import Answer, Verdict
from tpujob_operator.core.kinds import JOB, JOB_SET, POD

pytestmark = pytest.mark.control_plane

NAME = "j-preflight"

#: A job that has asked for compiled programs beside its checkpoints.
KEPT = {
    "trainer": {"config": {"checkpoint": {"keepPrograms": True}}},
    "checkpoint": {"directory": "gs://bucket/j"},
}


def say(jobs: Jobs, verdict: Verdict, code: int) -> None:
    """Run the preflight's only pod as a kubelet would, to this end."""
    [pod] = jobs.wait_pods("j", 1)
    jobs.run_pod(pod)
    ended = {"exitCode": code, "reason": "Error", "message": verdict.to_json()}
    container: dict[str, Any] = {
        "name": "check", "image": "i", "imageID": "", "ready": False, "restartCount": 0,
        "state": {"terminated": ended},
    }  # fmt: skip
    phase = "Failed" if code else "Succeeded"
    jobs.set_pod(pod["metadata"]["name"], {"phase": phase, "containerStatuses": [container]})


def test_a_job_that_fits_starts_then(jobs: Jobs) -> None:
    """Before, it has neither JobSet nor pods of its own."""
    job = jobs.create("j", preflight="Compile")
    made = jobs.wait(JOB, NAME)
    assert [owner["uid"] for owner in made["metadata"]["ownerReferences"]] == [
        job["metadata"]["uid"]
    ]
    jobs.wait_condition("j", "Preflight", "Checking", "False")
    assert jobs.all(JOB_SET, "j") == []
    say(jobs, Verdict(Answer.FITS, "fits: 9.50 of 15.75 GiB per chip"), 0)
    jobs.wait_condition("j", "Preflight", "Fits", says="9.50 of 15.75 GiB")
    jobs.wait_condition("j", "Admitted")
    jobs.wait(JOB_SET, "j-1")
    jobs.wait_event("j", "Fits")


def test_a_job_that_does_not_fit_fails(jobs: Jobs) -> None:
    """The Job controller tries no second pod, and the operator makes no JobSet."""
    jobs.create("j", preflight="Compile")
    say(jobs, Verdict(Answer.DOES_NOT_FIT, "does not fit: 18.00 of 15.75 GiB per chip"), 3)
    jobs.wait_condition("j", "Failed", "DoesNotFit", says="18.00 of 15.75 GiB")
    assert jobs.all(JOB_SET, "j") == []
    assert len(jobs.all(POD, "j")) == 1
    assert jobs.status("j")["goodput"]["seconds"]["queued"] > 0


def test_what_compiles_ahead_may_be_refused(jobs: Jobs) -> None:
    """The job starts as if it had not been asked for, and nothing of it stalls."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
    meta = {"name": "j-programs", "namespace": jobs.namespace}
    spec = {"suspend": True, "template": {"spec": pod}}
    namesake = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}
    jobs.api.request("POST", JOB.path(jobs.namespace), namesake)
    jobs.create("j", preflight="Compile", **KEPT)
    say(jobs, Verdict(Answer.FITS, "fits: 9.50 of 15.75 GiB per chip"), 0)
    jobs.wait(JOB_SET, "j-1")
    jobs.wait_condition("j", "Admitted")
    assert "Refused" not in jobs.events("j")


def test_programs_are_compiled_ahead(jobs: Jobs) -> None:
    """By a Job beside the attempt, whose pods are none of the attempt's."""
    jobs.create("j", preflight="Compile", **KEPT)
    say(jobs, Verdict(Answer.FITS, "fits: 9.50 of 15.75 GiB per chip"), 0)
    jobs.wait(JOB, "j-programs")
    jobs.wait(JOB_SET, "j-1")
    assert jobs.find(JOB, "j-programs"), "it is nothing that an earlier attempt has left"
