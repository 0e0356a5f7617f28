"""Fixtures for all tests: a real control plane, and a namespace of one's own on it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from localcluster import host
from localcluster.cluster import Cluster
from localcluster.layout import Spec

# Machines are shared: how long an example takes says nothing.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")

_OF_CLUSTERS = ("control_plane", "e2e")
CRD = Path(__file__).parents[1] / "crds" / "tpujob.dev_tputrainingjobs.yaml"


@pytest.hookimpl(tryfirst=True)  # the distribution reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say what one process of several takes: all that needs clusters, or a whole file.

    Clusters mostly wait, while other tests compute; two clusters at once would starve each other.
    """
    for item in items:
        needs_cluster = any(map(item.get_closest_marker, _OF_CLUSTERS))
        group = "clusters" if needs_cluster else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))


def start_control_plane(name: str) -> Cluster:
    """A control plane with our CRD, which ends with this process at the latest."""
    if reason := host.why_not(full=False):
        pytest.skip(reason)
    cluster = Cluster.up(Spec(name=name, control_plane_only=True), tied=True)
    cluster.kubectl("apply", "--server-side", "-f", str(CRD))
    cluster.kubectl("wait", "--for=create", "--timeout=10s", "crd/tputrainingjobs.tpujob.dev")
    return cluster


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """The real kube-apiserver, etcd, controller-manager, scheduler and JobSet, without nodes."""
    cluster = start_control_plane(f"test-{os.getpid()}")
    try:
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def namespace(control_plane: Cluster) -> Iterator[str]:
    """A new namespace; its objects go with it, in the background."""
    name = f"t-{uuid.uuid4().hex[:10]}"
    make_namespace(control_plane, name)
    yield name
    control_plane.api.request("DELETE", f"/api/v1/namespaces/{name}")


def make_namespace(cluster: Cluster, name: str) -> None:
    """Create a namespace."""
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    cluster.api.apply(manifest)
