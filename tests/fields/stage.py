"""The operator and the namespace in which the cases are played."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from localcluster.cluster import Cluster
from localcluster.kubeapi import Object
from tests.fields.world import World
from tests.operator.rig import Jobs, OperatorProcess, running

#: The one that the mutations' jobs name.
_PRIORITY: Object = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "high"},
    "value": 1,
}


class Stage(NamedTuple):
    """Where cases are played, several at a time."""

    world: World
    operator: OperatorProcess


@contextlib.contextmanager
def stage(cluster: Cluster, namespace: str, folder: Path) -> Iterator[Stage]:
    """An operator for this namespace, whose log lies in the folder."""
    cluster.api.request(
        "PATCH",
        "/apis/scheduling.k8s.io/v1/priorityclasses/high?fieldManager=tests&force=true",
        _PRIORITY,
        "application/apply-patch+yaml",
    )
    world = World(Jobs(cluster, namespace))
    with running(cluster, folder, namespace) as operator, world.watched():
        yield Stage(world, operator)
