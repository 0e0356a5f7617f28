"""What others have made stays theirs, whatever its name."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from localcluster.cluster import Cluster
from tests.operator.rig import Jobs, running
from tpujob_operator.core.kinds import JOB_SET, SECRET, SERVICE, TPU_TRAINING_JOB

pytestmark = pytest.mark.control_plane


def _service(name: str, namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"app": "druid"}, "ports": [{"port": 80}]},
    }


def _secret(name: str, namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "data": {"token": base64.b64encode(b"precious").decode()},
    }


def test_names_of_others_are_not_taken(jobs: Jobs) -> None:
    """A Secret and a Service that are called as a job's could be stay as they are, and stay."""
    foreign = [
        jobs.api.request("POST", SECRET.path(jobs.namespace), _secret("hf-token", jobs.namespace)),
        jobs.api.request(
            "POST", SERVICE.path(jobs.namespace), _service("hf-coordinator", jobs.namespace)
        ),
    ]
    jobs.create("hf")
    jobs.wait_pods("hf", 3)
    jobs.delete(TPU_TRAINING_JOB, "hf")
    jobs.wait_gone(TPU_TRAINING_JOB, "hf")
    jobs.wait_gone(JOB_SET, "hf-1")
    assert jobs.find(SECRET, "hf-token") == foreign[0]
    assert jobs.find(SERVICE, "hf-coordinator") == foreign[1]


def test_foreign_service_of_the_very_name_is_told(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path
) -> None:
    """Nothing is taken over; the job says what to delete, and starts once it is gone."""
    own_jobs.create("j")
    name = own_jobs.service_of("j")
    path = SERVICE.path(own_jobs.namespace)
    foreign = own_jobs.api.request("POST", path, _service(name, own_jobs.namespace))
    with running(control_plane, tmp_path, own_jobs.namespace):
        message = own_jobs.wait_condition("j", "Stalled", "Refused")
        assert f"Delete services/{name}" in message
        assert own_jobs.find(SERVICE, name) == foreign
        assert own_jobs.find(JOB_SET, "j-1") is None
        assert "Created" not in own_jobs.events("j")
        own_jobs.delete(SERVICE, name)
        own_jobs.wait(JOB_SET, "j-1")
        own_jobs.wait_condition("j", "Stalled", "NotStalled", "False")
        own_jobs.wait_event("j", "Created")
        assert own_jobs.events("j").count("Created") == 1


def test_objects_that_were_made_before_a_kill_are_used(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path
) -> None:
    """What the job owns already is found again, and is not made a second time."""
    own_jobs.create("j")
    with running(control_plane, tmp_path, own_jobs.namespace) as operator:
        secret = own_jobs.wait(SECRET, own_jobs.secret_of("j"))
        service = own_jobs.wait(SERVICE, own_jobs.service_of("j"))
        operator.kill()
    if own_jobs.find(JOB_SET, "j-1"):
        own_jobs.delete(JOB_SET, "j-1", propagationPolicy="Background")
        own_jobs.wait_gone(JOB_SET, "j-1")
    with running(control_plane, tmp_path, own_jobs.namespace):
        own_jobs.wait(JOB_SET, "j-1")
        own_jobs.wait_condition("j", "Stalled", "NotStalled", "False")
    assert own_jobs.find(SECRET, secret["metadata"]["name"]) == secret
    assert own_jobs.find(SERVICE, service["metadata"]["name"]) == service
