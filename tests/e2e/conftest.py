"""Fixtures of the end-to-end tests: one cluster with the operator's chart for all of them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from demo import clusters, install
from localcluster import host, preparation
from localcluster.cluster import Cluster
from localcluster.layout import Spec
from tests.e2e.rig import Jobs


class Installed(NamedTuple):
    """A cluster on which the operator runs; ``cluster`` where it is one of ours."""

    target: clusters.Target
    cluster: Cluster | None

    def install(self) -> None:
        """Install the chart, and wait until the operator is ready."""
        soon = {"nodeLossSeconds": 10}
        install.install(self.target.kubeconfig, self.target.chart_values | soon)


@pytest.fixture(scope="session")
def e2e_cluster() -> Iterator[Installed]:
    """Four TPU hosts, two in each slice, with JobSet and the operator's chart.

    It is the local cluster, or what ``CLUSTER`` names (kind, current).
    """
    kind = clusters.choose(os.environ.get("CLUSTER") or "auto")
    made = _local() if kind == "local" else _elsewhere(kind)
    try:
        made.install()
        yield made
    finally:
        made.target.down()


def _local() -> Installed:
    try:
        archives = preparation.prepare()
    except host.HostUnfitError as error:
        pytest.skip(str(error))
    cluster = Cluster.up(
        Spec(name=f"e2e-{os.getpid()}", nodes=4, node_monitor_grace_s=20),
        images=[archive.path for archive in archives.values()],
        tied=True,
    )
    return Installed(clusters.target(cluster.kubeconfig, archives, cluster.down), cluster)


def _elsewhere(kind: str) -> Installed:
    try:
        target = clusters.prepare(kind, print, tied=True)
    except clusters.UnfitError as error:
        pytest.skip(str(error))
    if "persistentVolumeClaim" in target.volume:
        pytest.skip("each test has a namespace of its own: give SHARED_HOST_PATH, no SHARED_CLAIM")
    return Installed(target, None)


@pytest.fixture
def jobs(e2e_cluster: Installed) -> Iterator[Jobs]:
    """A namespace of one's own; its jobs go with it."""
    made = Jobs(e2e_cluster.target, e2e_cluster.cluster, f"e2e-{uuid.uuid4().hex[:10]}")
    made.kube.ensure_namespace()
    yield made
    made.kube.delete_namespace()
