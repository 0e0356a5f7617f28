"""Fixtures of the operator's tests: one operator for all of them, in namespaces of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from localcluster.cluster import Cluster
from tests.conftest import make_namespace
from tests.operator.nodes import kubelets, make_node, remove_node, renew_lease, tpu_labels
from tests.operator.rig import NODE, Jobs, OperatorProcess, running

_NAMESPACES = 64


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
    make_node(cluster, NODE)
    with kubelets(cluster, NODE):
        yield


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


@pytest.fixture
def silent_node(control_plane: Cluster) -> Iterator[str]:
    """A TPU node whose kubelet has stopped renewing its lease."""
    name = f"silent-{uuid.uuid4().hex[:8]}"
    make_node(control_plane, name, ready="Unknown", labels=tpu_labels(name))
    renew_lease(control_plane, name)
    yield name
    remove_node(control_plane, name)
