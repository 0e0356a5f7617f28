"""A defect of the operator that shows with one job is said by that job."""

from __future__ import annotations

from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from localcluster.kubeapi import Object
from tests.operator.builds import defective_build, environment
from tests.operator.rig import Jobs, running
from tpujob_operator.core.kinds import JOB_SET

pytestmark = pytest.mark.control_plane


def test_job_says_that_the_operator_fails(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path
) -> None:
    """After some passes that end with an exception the job is stalled, and nothing else changes.

    Another job is served meanwhile, and the word ends with a build that has no defect.
    """
    own_jobs.create("j", suspend=True)
    with running(control_plane, tmp_path, own_jobs.namespace):
        own_jobs.wait_condition("j", "Suspended")
        own_jobs.wait(JOB_SET, "j-1")
    good = own_jobs.status("j")
    env = environment(defective_build(tmp_path))
    with running(control_plane, tmp_path, own_jobs.namespace, env=env):
        message = own_jobs.wait_condition("j", "Stalled", "InternalError")
        assert "TypeError" in message
        found = own_jobs.status("j")
        assert _others(found) == _others(good)
        assert found | {"conditions": []} == good | {"conditions": []}
        own_jobs.create("other", slices=1)
        own_jobs.wait(JOB_SET, "other-1")
    with running(control_plane, tmp_path, own_jobs.namespace):
        own_jobs.wait_condition("j", "Stalled", "NotStalled", "False")


def _others(status: Object) -> list[Object]:
    return [item for item in status["conditions"] if item["type"] != "Stalled"]
