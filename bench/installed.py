"""A local cluster of four hosts on which the operator runs, for benchmarks that hit it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from demo import clusters, install
from demo.clusters import Target
from localcluster import preparation
from localcluster.cluster import Cluster
from localcluster.layout import Spec
from localcluster.progress import Progress


@contextlib.contextmanager
def installed(name: str, say: Progress) -> Iterator[tuple[Cluster, Target]]:
    """The cluster, with JobSet, the images and the operator's chart; gone afterwards."""
    archives = preparation.prepare(say)
    images = [archive.path for archive in archives.values()]
    with Cluster.up(Spec(name=name, nodes=4), images=images, tied=True, progress=say) as cluster:
        target = clusters.target(cluster.kubeconfig, archives, cluster.down)
        install.install(target.kubeconfig, target.chart_values)
        yield cluster, target
