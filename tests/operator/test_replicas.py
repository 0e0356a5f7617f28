"""Two operator processes for the same jobs: one acts, and the other one follows."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from tests.faultproxy.faults import Match, Strike
from tests.faultproxy.proxy import FaultProxy
from tests.operator.rig import Jobs, OperatorProcess, running
from tests.waiting import PATIENCE_S, until, wait_until
from tpujob_operator.__main__ import LOST_LEASE
from tpujob_operator.core.kinds import EVENT, JOB_SET, LEASE, SECRET, SERVICE, TPU_TRAINING_JOB

pytestmark = pytest.mark.control_plane
_LEASE = "operator"
#: For tests that wait for a Lease to expire.
_SHORT = {
    "TPUJOB_LEASE_DURATION_S": "3",
    "TPUJOB_LEASE_RENEW_DEADLINE_S": "2",
    "TPUJOB_LEASE_RETRY_S": "0.5",
}
#: For tests in which the leader must not change by itself, however busy the machine.
_LONG = {"TPUJOB_LEASE_DURATION_S": "600", "TPUJOB_LEASE_RENEW_DEADLINE_S": "500"}
_JOBS = 6


@contextlib.contextmanager
def _replica(
    cluster: Cluster, folder: Path, jobs: Jobs, timing: dict[str, str]
) -> Iterator[OperatorProcess]:
    env = {"TPUJOB_NAMESPACE": jobs.namespace, "TPUJOB_LEASE_NAME": _LEASE, **timing}
    with running(cluster, folder, jobs.namespace, env=env) as replica:
        yield replica


@contextlib.contextmanager
def _two(
    cluster: Cluster, folder: Path, jobs: Jobs, timing: dict[str, str]
) -> Iterator[tuple[OperatorProcess, OperatorProcess]]:
    """A leader and a standby, both ready."""
    with _replica(cluster, folder, jobs, timing) as leader:
        _wait_leader(leader)
        with _replica(cluster, folder, jobs, timing) as standby:
            yield leader, standby


def _wait_leader(replica: OperatorProcess) -> None:
    wait_until(lambda: "this replica is the leader" in replica.text, "a leader")


def _gauge(replica: OperatorProcess, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", replica.get("metrics", "/metrics"), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def _verbs(replica: OperatorProcess) -> set[str]:
    """Verbs of all its calls of the API."""
    series = r'^tpujob_operator_api_calls_total\{.*verb="(\w+)"'
    return set(re.findall(series, replica.get("metrics", "/metrics"), re.MULTILINE))


def _versions(jobs: Jobs) -> dict[str, str]:
    """The version of every object that an operator writes."""
    kinds = (TPU_TRAINING_JOB, JOB_SET, SECRET, SERVICE, EVENT)
    return {
        f"{kind.kind}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
        for kind in kinds
        for item in jobs.all(kind)
    }


def _wait_settled(jobs: Jobs) -> None:
    """All jobs are suspended, with one JobSet each."""
    for number in range(_JOBS):
        jobs.wait_condition(f"j{number}", "Suspended")
        jobs.wait(JOB_SET, f"j{number}-1")
    assert len(jobs.all(JOB_SET)) == _JOBS
    assert {jobs.status(f"j{number}")["attempt"] for number in range(_JOBS)} == {1}


def _submit(jobs: Jobs) -> None:
    for number in range(_JOBS):
        jobs.create(f"j{number}", suspend=True)


def test_standby_watches_and_writes_nothing(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path
) -> None:
    """The standby is ready, knows what there is, and sends no write, while the leader acts."""
    with _two(control_plane, tmp_path, own_jobs, _LONG) as (leader, standby):
        _submit(own_jobs)
        _wait_settled(own_jobs)
        assert "ok" in standby.get("probes", "/readyz")
        assert "ok" in standby.get("probes", "/healthz")
        assert _gauge(leader, "tpujob_operator_leader") == 1
        assert _gauge(standby, "tpujob_operator_leader") == 0
        assert _gauge(standby, "tpujob_operator_queue_depth") == 0
        assert "tpujob_operator_reconciles_total{" not in standby.get("metrics", "/metrics")
        assert _verbs(standby) <= {"get", "list", "watch"}
        assert {"create", "patch"} & _verbs(leader)


def test_stopped_leader_leaves_at_once(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path
) -> None:
    """SIGTERM releases the Lease, so nobody waits for ten minutes until it expires."""
    with _two(control_plane, tmp_path, own_jobs, _LONG) as (leader, standby):
        own_jobs.create("j0", suspend=True)
        own_jobs.wait(JOB_SET, "j0-1")
        assert leader.stop() == 0
        assert "released Lease" in leader.text
        _wait_leader(standby)
        own_jobs.create("j1", suspend=True)
        own_jobs.wait(JOB_SET, "j1-1")


def test_pass_under_way_ends_before_the_lease_is_released(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path
) -> None:
    """SIGTERM while a job's first object is being made: the others are still made."""

    async def go_on() -> None:
        await until(lambda: "the operator stops" in leader.text, "the end")

    def stop() -> None:
        leader.popen.send_signal(signal.SIGTERM)

    with FaultProxy(control_plane.kubeconfig, tmp_path) as proxy:
        env = {**_LONG, "KUBECONFIG": str(proxy.kubeconfig)}
        with _replica(control_plane, tmp_path, own_jobs, env) as leader:
            _wait_leader(leader)
            proxy.on(Match("create", "secrets"), Strike(before=stop, after=go_on))
            own_jobs.create("j0")
            assert leader.popen.wait(PATIENCE_S) == 0
        made = [write.target for write in proxy.journal.effective if write.verb == "create"]
    assert made == ["secrets", "services", "jobsets"]
    assert "released Lease" in leader.text


def test_killed_leader_is_followed_and_nothing_is_made_twice(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path
) -> None:
    """A leader that dies midway leaves jobs half made: the standby finishes each of them, once."""
    with _two(control_plane, tmp_path, own_jobs, _SHORT) as (leader, standby):
        _submit(own_jobs)
        wait_until(lambda: own_jobs.all(JOB_SET), "the first JobSet")
        leader.kill()
        _wait_leader(standby)
        _wait_settled(own_jobs)
        assert "Traceback" not in standby.text


def test_frozen_leader_writes_nothing_when_it_wakes(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path
) -> None:
    """A leader that stands still while it has work to do ends when it wakes, and leaves all be."""
    with _two(control_plane, tmp_path, own_jobs, _SHORT) as (leader, standby):
        _submit(own_jobs)
        wait_until(lambda: own_jobs.all(JOB_SET), "the first JobSet")
        leader.popen.send_signal(signal.SIGSTOP)
        _wait_leader(standby)
        _wait_settled(own_jobs)
        standby.stop()  # what happens from now on is the woken one's doing
        before = _versions(own_jobs)
        leader.popen.send_signal(signal.SIGCONT)
        assert leader.popen.wait(PATIENCE_S) == LOST_LEASE, leader.text
        assert _versions(own_jobs) == before
    assert "the operator ends, another one acts" in leader.text


def test_replica_without_an_own_namespace_says_so(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path
) -> None:
    """A Lease that cannot be made is told once, and the operator stays and writes nothing."""
    env = {"TPUJOB_NAMESPACE": "nowhere", "TPUJOB_LEASE_NAME": _LEASE}
    with running(control_plane, tmp_path, own_jobs.namespace, env=env) as replica:
        own_jobs.create("j0")
        wait_until(lambda: "nowhere/operator cannot be reached" in replica.text, "words")
        assert 'namespaces "nowhere" not found' in replica.text
        assert not own_jobs.status("j0")
        assert replica.popen.poll() is None


def test_lease_is_of_the_operators_own_namespace(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path
) -> None:
    """Two releases that serve the same namespaces have Leases of their own names."""
    with _replica(control_plane, tmp_path, own_jobs, _LONG) as replica:
        _wait_leader(replica)
        (lease,) = own_jobs.all(LEASE)
        assert lease["metadata"]["name"] == _LEASE
        assert lease["spec"]["holderIdentity"] in replica.text
