"""Writes that the API server refuses or puts off: the job says so, and goes on afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from tests.faultproxy.faults import Fault, LoseAnswer, Match, Refuse, Strike
from tests.faultproxy.proxy import FaultProxy
from tests.operator.rig import Jobs, OperatorProcess, running
from tests.waiting import wait_until
from tpujob_operator.core.kinds import JOB, JOB_SET, POD, TPU_TRAINING_JOB

pytestmark = pytest.mark.control_plane
_STATUS = Match("patch", "tputrainingjobs", subresource="status")


@pytest.fixture
def proxy(control_plane: Cluster, tmp_path: Path) -> Iterator[FaultProxy]:
    """What lies between operator and API server."""
    with FaultProxy(control_plane.kubeconfig, tmp_path) as running_proxy:
        yield running_proxy


@pytest.fixture
def operator(
    control_plane: Cluster, proxy: FaultProxy, own_jobs: Jobs, tmp_path: Path
) -> Iterator[OperatorProcess]:
    """An operator behind the proxy; what happens to it leaves no traceback."""
    env = {"KUBECONFIG": str(proxy.kubeconfig)}
    with running(control_plane, tmp_path, own_jobs.namespace, env=env) as process:
        yield process
        assert "Traceback" not in process.life
        assert process.popen.poll() is None


def _made(proxy: FaultProxy) -> list[str]:
    """What has been created so far, in the order of the alphabet."""
    return sorted(write.target for write in proxy.journal.effective if write.verb == "create")


@pytest.mark.usefixtures("operator")
def test_refused_patch_is_told_and_tried_again(proxy: FaultProxy, own_jobs: Jobs) -> None:
    """A JobSet that may not be changed: the job names it, and is suspended once it may be."""
    own_jobs.create("j")
    own_jobs.wait_pods("j", 3)
    proxy.on(Match("patch", "jobsets"), Refuse(403), times=None)
    own_jobs.change("j", suspend=True)
    message = own_jobs.wait_condition("j", "Stalled", "Refused")
    assert "JobSet j-1 cannot be changed" in message
    proxy.heal()
    own_jobs.wait_condition("j", "Suspended")
    own_jobs.wait_condition("j", "Stalled", "NotStalled", "False")
    assert own_jobs.wait(JOB_SET, "j-1")["spec"]["suspend"]


@pytest.mark.usefixtures("operator")
def test_job_that_is_deleted_under_its_status_is_forgotten(
    proxy: FaultProxy, own_jobs: Jobs
) -> None:
    """The API server's own 404: nothing is made for the job; its namesake starts as any other."""
    delete = Strike(before=lambda: own_jobs.delete(TPU_TRAINING_JOB, "j"))
    proxy.on(_STATUS, delete)
    own_jobs.create("j")
    wait_until(lambda: [write.code for write in proxy.journal.writes] == [404], "the refusal")
    assert not own_jobs.all(JOB_SET)
    job = own_jobs.create("j")
    owners = own_jobs.wait(JOB_SET, "j-1")["metadata"]["ownerReferences"]
    assert [owner["uid"] for owner in owners] == [job["metadata"]["uid"]]


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize("fault", [Refuse(404), Refuse(429, retry_after_s=1), Refuse(503)])
def test_writes_that_are_put_off_are_made_once(
    proxy: FaultProxy, own_jobs: Jobs, fault: Fault
) -> None:
    """Every kind of write fails twice, also with a 404 for a job that is there; nothing is lost."""
    targets = [_STATUS, Match("create", "services"), Match("create", "jobsets")]
    rules = [proxy.on(match, fault, times=2) for match in targets]
    own_jobs.create("j")
    own_jobs.wait_pods("j", 3)
    own_jobs.wait_status("j", lambda status: status.get("attempt") == 1, "attempt 1")
    assert [rule.hits for rule in rules] == [2, 2, 2]
    # What was made may be seen before the answer to its creation has passed.
    wait_until(lambda: len(_made(proxy)) == len(rules), "answers to all creations")
    assert _made(proxy) == ["jobsets", "secrets", "services"]


@pytest.mark.usefixtures("operator")
def test_creation_that_happened_unanswered_is_told_as_refused_no_longer(
    proxy: FaultProxy, own_jobs: Jobs
) -> None:
    """The last of several tries succeeds and says that it failed: the watch shows better."""
    match = Match("create", "jobsets")
    proxy.on(match, Refuse(500), times=None)
    own_jobs.create("j")
    own_jobs.wait_condition("j", "Stalled", "Refused")
    proxy.heal()
    proxy.on(match, LoseAnswer(504), times=None)
    own_jobs.wait(JOB_SET, "j-1")
    own_jobs.wait_condition("j", "Stalled", "NotStalled", "False")


@pytest.mark.usefixtures("operator")
def test_conflict_is_no_proof_that_an_object_is_gone(proxy: FaultProxy, own_jobs: Jobs) -> None:
    """A webhook may answer a deletion with 409: the slice is replaced all the same."""
    rule = proxy.on(Match("delete", "jobs"), Refuse(409))
    own_jobs.create("j")
    pods = own_jobs.run_pods("j", 3)
    before = own_jobs.wait(JOB, "j-1-slice-0")["metadata"]["uid"]
    names = [pod["metadata"]["name"] for pod in pods]
    own_jobs.delete(POD, next(name for name in names if "-slice-0-" in name))
    own_jobs.wait_gone(JOB, "j-1-slice-0", before)
    assert rule.hits == 1
