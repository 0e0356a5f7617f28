"""Fixtures of the operator's tests: one operator for all of them, in namespaces of its own."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from localcluster.cluster import Cluster
from tests.conftest import make_namespace
from tests.operator.rig import NODE, Jobs, OperatorProcess, running

_NAMESPACES = 24


@pytest.fixture(scope="session", autouse=True)
def node(request: pytest.FixtureRequest) -> Iterator[None]:
    """A node to which tests bind pods: alive, but closed to the scheduler.

    Pods of nodes that do not exist, or have fallen silent, are removed by the
    controllers within a minute.
    """
    if not any(item.get_closest_marker("control_plane") for item in request.session.items):
        yield
        return
    cluster: Cluster = request.getfixturevalue("control_plane")
    _make_node(cluster)
    stop = threading.Event()
    beat = threading.Thread(target=_heartbeat, args=(cluster, stop), daemon=True)
    beat.start()
    yield
    stop.set()
    beat.join()


def _make_node(cluster: Cluster) -> None:
    cluster.api.apply(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": NODE},
            "spec": {"unschedulable": True},
        }
    )
    ready = {
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
        "lastHeartbeatTime": _now(), "lastTransitionTime": _now(),
    }  # fmt: skip
    cluster.api.merge(f"/api/v1/nodes/{NODE}/status", {"status": {"conditions": [ready]}})


def _heartbeat(cluster: Cluster, stop: threading.Event) -> None:
    while True:
        cluster.api.apply(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": NODE, "namespace": "kube-node-lease"},
                "spec": {
                    "holderIdentity": NODE,
                    "leaseDurationSeconds": 40,
                    "renewTime": _now("%Y-%m-%dT%H:%M:%S.%fZ"),
                },
            }
        )
        if stop.wait(5):
            return


def _now(form: str = "%Y-%m-%dT%H:%M:%SZ") -> str:
    return datetime.now(UTC).strftime(form)


@pytest.fixture(scope="session")
def shared_operator(
    control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[OperatorProcess, list[str]]]:
    """An operator, and the namespaces that it serves and no test has used yet."""
    names = [f"op-{uuid.uuid4().hex[:8]}" for _ in range(_NAMESPACES)]
    for name in names:
        make_namespace(control_plane, name)
    with running(control_plane, tmp_path_factory.mktemp("operator"), *names) as operator:
        yield operator, names
        assert "Traceback" not in operator.life, operator.text


@pytest.fixture
def operator(shared_operator: tuple[OperatorProcess, list[str]]) -> OperatorProcess:
    """The shared operator."""
    return shared_operator[0]


@pytest.fixture
def jobs(control_plane: Cluster, shared_operator: tuple[OperatorProcess, list[str]]) -> Jobs:
    """A namespace that the shared operator serves."""
    return Jobs(control_plane, shared_operator[1].pop())


@pytest.fixture
def own_jobs(control_plane: Cluster, namespace: str) -> Jobs:
    """A namespace that no operator serves until the test starts one."""
    return Jobs(control_plane, namespace)
