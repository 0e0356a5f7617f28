"""Fixtures for all tests: a real control plane, and a namespace of one's own on it."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling, Scheduling

from localcluster import host
from localcluster.cluster import Cluster
from localcluster.layout import Spec

# Its assertion shows what differs, as those of test modules do.
pytest.register_assert_rewrite("tests.golden")

# Machines are shared: how long an example takes says nothing.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")

_NEEDS_NODES = re.compile(r"^tests/(e2e|localcluster)/")
_NEEDS_CONTROL_PLANE = re.compile(r"^tests/(operator|cli)/|_on_(api_server|control_plane)\.py$")
CRD = Path(__file__).parents[1] / "crds" / "tpujob.dev_tputrainingjobs.yaml"


class _Shares(LoadScopeScheduling):  # type: ignore[misc] # xdist ships no types
    """What one process of several takes: all that needs nodes, or control planes, or a whole file.

    Clusters mostly wait, while other tests compute; nodes of two at once would starve each other.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if _NEEDS_NODES.search(path):
            return "nodes"
        return "control planes" if _NEEDS_CONTROL_PLANE.search(path) else path


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """How ``-n`` shares the tests out."""
    return _Shares(config, log)


def start_control_plane(name: str, **shape: Any) -> Cluster:
    """A control plane with our CRD, which ends with this process at the latest."""
    if reason := host.why_not(full=False):
        pytest.skip(reason)
    cluster = Cluster.up(Spec(name=name, control_plane_only=True, **shape), tied=True)
    cluster.kubectl("apply", "--server-side", "-f", str(CRD))
    cluster.kubectl("wait", "--for=create", "--timeout=120s", "crd/tputrainingjobs.tpujob.dev")
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
