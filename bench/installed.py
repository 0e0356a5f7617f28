"""A local cluster of four hosts on which the operator runs, for benchmarks that hit it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from demo import clusters, install
from demo.clusters import Target
from localcluster import preparation
from localcluster.cluster import Cluster
from localcluster.layout import Spec
from localcluster.progress import Progress


@contextlib.contextmanager
def installed(
    name: str, say: Progress, *, node_loss_s: int | None = None, **shape: Any
) -> Iterator[tuple[Cluster, Target]]:
    """The cluster, with JobSet, the images and the operator's chart; gone afterwards.

    Args:
        name: of the cluster.
        say: is told what happens.
        node_loss_s: the chart's ``nodeLossSeconds``; default: the chart's.
        shape: what else ``localcluster.layout.Spec`` is to have.
    """
    archives = preparation.prepare(say)
    images = [archive.path for archive in archives.values()]
    spec = Spec(name=name, **shape)
    values = {} if node_loss_s is None else {"nodeLossSeconds": node_loss_s}
    with Cluster.up(spec, images=images, tied=True, progress=say) as cluster:
        target = clusters.target(cluster.kubeconfig, archives, cluster.down)
        install.install(target.kubeconfig, target.chart_values | values)
        yield cluster, target
