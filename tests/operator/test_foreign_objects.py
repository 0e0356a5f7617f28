"""Objects of somebody else that look like those of a job."""

from __future__ import annotations

import pytest

from localcluster.kubeapi import Object
from tests.operator.rig import Jobs
from tpujob_operator.core.kinds import JOB_SET, POD

pytestmark = pytest.mark.control_plane


def _debug_copy(jobs: Jobs, pod: Object) -> Object:
    """A pod of its own with the labels of a worker, as somebody makes it to look around."""
    copied = ("tpujob.dev/job", "tpujob.dev/attempt", "tpujob.dev/role")
    labels = {name: pod["metadata"]["labels"][name] for name in copied}
    body: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "debug", "namespace": jobs.namespace, "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "x"}]},
    }
    return jobs.api.apply(body)


def test_a_pod_with_copied_labels_holds_up_nothing(jobs: Jobs) -> None:
    """The next attempt begins beside it, and it stays."""
    jobs.create("j")
    worker = next(pod for pod in jobs.wait_pods("j", 3) if "slice-0" in pod["metadata"]["name"])
    debug = _debug_copy(jobs, worker)
    jobs.change("j", slices=1)
    jobs.wait(JOB_SET, "j-2")
    assert jobs.wait(POD, "debug")["metadata"]["uid"] == debug["metadata"]["uid"]
