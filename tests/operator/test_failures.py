"""A defect of the operator that shows with one job is said by that job."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from tests.operator.rig import Jobs, running
from tpujob_operator.core.kinds import JOB_SET, TPU_TRAINING_JOB

pytestmark = pytest.mark.control_plane


def test_job_says_that_the_operator_fails(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path
) -> None:
    """After some passes that end with an exception the job is stalled, and nothing else changes.

    The exception is real: somebody has put a word where the history has a number.
    """
    own_jobs.create("j", suspend=True)
    with running(control_plane, tmp_path, own_jobs.namespace):
        own_jobs.wait_condition("j", "Suspended")
        own_jobs.wait(JOB_SET, "j-1")
    good = own_jobs.status("j")
    bad = copy.deepcopy(good)
    bad["ledger"]["progress"]["step"] = "many"
    path = TPU_TRAINING_JOB.path(own_jobs.namespace, "j", "status")
    own_jobs.api.merge(path, {"status": bad})
    with running(control_plane, tmp_path, own_jobs.namespace):
        message = own_jobs.wait_condition("j", "Stalled", "InternalError")
        assert "TypeError" in message
        found = own_jobs.status("j")
        others = [item for item in bad["conditions"] if item["type"] != "Stalled"]
        assert [item for item in found["conditions"] if item["type"] != "Stalled"] == others
        assert found | {"conditions": []} == bad | {"conditions": []}
        own_jobs.api.merge(path, {"status": {"ledger": good["ledger"]}})
        own_jobs.wait_condition("j", "Stalled", "NotStalled", "False")
