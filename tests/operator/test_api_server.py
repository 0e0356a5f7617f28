"""An API server that is away, slow or overloaded: the operator waits, and does not restart."""

from __future__ import annotations

import contextlib
import re
import urllib.error
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from tests.faultproxy.faults import Delay, Match, Refuse
from tests.faultproxy.proxy import FaultProxy
from tests.operator.rig import Jobs, OperatorProcess, running, started
from tests.waiting import wait_until
from tpujob_operator.core.kinds import JOB_SET, LEASE

pytestmark = pytest.mark.control_plane
_EVERYTHING = Match()


@pytest.fixture
def proxy(control_plane: Cluster, tmp_path: Path) -> Iterator[FaultProxy]:
    """What lies between operator and API server."""
    with FaultProxy(control_plane.kubeconfig, tmp_path) as running_proxy:
        yield running_proxy


def _env(proxy: FaultProxy, jobs: Jobs, **timing: str) -> dict[str, str]:
    return {
        "KUBECONFIG": str(proxy.kubeconfig),
        "TPUJOB_NAMESPACE": jobs.namespace,
        "TPUJOB_LEASE_NAME": "operator",
        **timing,
    }


@contextlib.contextmanager
def _behind(
    cluster: Cluster, proxy: FaultProxy, jobs: Jobs, folder: Path, **timing: str
) -> Iterator[OperatorProcess]:
    with running(cluster, folder, jobs.namespace, env=_env(proxy, jobs, **timing)) as operator:
        yield operator


def _probe(operator: OperatorProcess, path: str) -> int:
    try:
        operator.get("probes", path)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    return HTTPStatus.OK


def _calls(operator: OperatorProcess, code: int) -> float:
    """Calls of the API that were answered so."""
    pattern = rf'^tpujob_operator_api_calls_total\{{code="{code}".*\}} (\S+)$'
    text = operator.get("metrics", "/metrics")
    return sum(float(value) for value in re.findall(pattern, text, re.MULTILINE))


def test_operator_waits_for_an_api_server_at_start(
    control_plane: Cluster, proxy: FaultProxy, own_jobs: Jobs, tmp_path: Path
) -> None:
    """It is alive and not ready, asks again with growing pauses, and starts when it is answered."""
    proxy.on(_EVERYTHING, Refuse(503), times=None)
    env = _env(proxy, own_jobs)
    with started(control_plane, tmp_path, own_jobs.namespace, env=env) as operator:
        wait_until(lambda: operator.text.count("nodes: ApiError") >= 4, "tries")
        assert _probe(operator, "/healthz") == HTTPStatus.OK
        assert _probe(operator, "/readyz") == HTTPStatus.SERVICE_UNAVAILABLE
        proxy.heal()
        operator.wait_ready()
        assert _probe(operator, "/readyz") == HTTPStatus.OK
        own_jobs.create("j", suspend=True)
        own_jobs.wait(JOB_SET, "j-1")
        assert operator.stop() == 0


def test_operator_stops_in_order_while_the_api_server_is_away(
    control_plane: Cluster, proxy: FaultProxy, own_jobs: Jobs, tmp_path: Path
) -> None:
    """SIGTERM ends it with success before it has ever been ready."""
    proxy.on(_EVERYTHING, Refuse(503), times=None)
    env = _env(proxy, own_jobs)
    with started(control_plane, tmp_path, own_jobs.namespace, env=env) as operator:
        wait_until(lambda: "nodes: ApiError" in operator.text, "a try")
        assert operator.stop() == 0
        assert "Traceback" not in operator.text


def test_outage_restarts_nobody(
    control_plane: Cluster, proxy: FaultProxy, own_jobs: Jobs, tmp_path: Path
) -> None:
    """503 for longer than the Lease lasts: no writes, still alive; then the same process acts."""
    timing = {
        "TPUJOB_LEASE_DURATION_S": "3",
        "TPUJOB_LEASE_RENEW_DEADLINE_S": "2",
        "TPUJOB_LEASE_RETRY_S": "0.5",
    }
    with _behind(control_plane, proxy, own_jobs, tmp_path, **timing) as operator:
        own_jobs.create("j", suspend=True)
        own_jobs.wait(JOB_SET, "j-1")
        proxy.on(_EVERYTHING, Refuse(503), times=None)
        proxy.close_watches()
        own_jobs.create("k", suspend=True)
        leader = "^tpujob_operator_leader 0.0$"
        wait_until(
            lambda: re.search(leader, operator.get("metrics", "/metrics"), re.MULTILINE),
            "a closed fence",
        )
        failed = _calls(operator, 503)
        wait_until(lambda: _calls(operator, 503) >= failed + 20, "many refused calls")
        assert _probe(operator, "/healthz") == HTTPStatus.OK
        assert _probe(operator, "/readyz") == HTTPStatus.OK
        assert not own_jobs.status("k")
        proxy.heal()
        own_jobs.wait(JOB_SET, "k-1")
        assert operator.popen.poll() is None
        (lease,) = own_jobs.all(LEASE)
        assert lease["spec"]["leaseTransitions"] == 1
        assert "Traceback" not in operator.text


def test_slow_api_server_is_no_outage(
    control_plane: Cluster, proxy: FaultProxy, own_jobs: Jobs, tmp_path: Path
) -> None:
    """Every answer takes two seconds: the leader stays the leader, and does its work."""
    with _behind(control_plane, proxy, own_jobs, tmp_path) as operator:
        own_jobs.create("first", suspend=True)
        own_jobs.wait(JOB_SET, "first-1")
        proxy.on(_EVERYTHING, Delay(2.0), times=None)
        own_jobs.create("j", suspend=True)
        own_jobs.wait(JOB_SET, "j-1")
        own_jobs.wait_condition("j", "Suspended")
        assert _probe(operator, "/healthz") == HTTPStatus.OK
        assert "cannot be reached" not in operator.text
        (lease,) = own_jobs.all(LEASE)
        assert lease["spec"]["leaseTransitions"] == 1


def test_pause_that_the_server_asks_for_is_kept(
    control_plane: Cluster, proxy: FaultProxy, own_jobs: Jobs, tmp_path: Path
) -> None:
    """After one 429 with Retry-After nobody asks for so long, not only the job that was refused."""
    with _behind(control_plane, proxy, own_jobs, tmp_path) as operator:
        own_jobs.create("first", suspend=True)
        own_jobs.wait(JOB_SET, "first-1")
        own_jobs.wait_condition("first", "Suspended")
        rule = proxy.on(Match(is_write=True), Refuse(429, retry_after_s=3600))
        own_jobs.create("j", suspend=True)
        wait_until(lambda: _calls(operator, 429) == 1, "the refusal")
        writes = len(proxy.journal.writes)
        own_jobs.create("k", suspend=True)
        # Renewals go on: three of them, and not one write.
        renewals = proxy.journal.calls["update", "leases"]
        wait_until(lambda: proxy.journal.calls["update", "leases"] >= renewals + 3, "renewals")
        assert len(proxy.journal.writes) == writes
        assert not own_jobs.status("j")
        assert not own_jobs.status("k")
        assert _calls(operator, 429) == 1
        assert rule is not None


def test_end_of_kopf_ends_nothing_else(
    control_plane: Cluster, proxy: FaultProxy, own_jobs: Jobs, tmp_path: Path
) -> None:
    """An answer that ends Kopf's watch for good ends neither the process nor the service."""
    with _behind(control_plane, proxy, own_jobs, tmp_path) as operator:
        proxy.on(Match(verb="watch", resource="tputrainingjobs"), Refuse(400), times=3)
        proxy.close_watches()
        wait_until(lambda: "Watcher for tputrainingjobs" in operator.text, "the end of Kopf")
        own_jobs.create("j", suspend=True)
        own_jobs.wait(JOB_SET, "j-1")
        assert operator.stop() == 0
