"""The operator's own client in the test's process, against the real API server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from kubernetes.aio import config
from kubernetes.aio.client import Configuration

from localcluster.cluster import Cluster
from tests.eventloops import connections_ended
from tpujob_operator.shell.client import Client


@contextlib.asynccontextmanager
async def client_of(cluster: Cluster, **options: Any) -> AsyncIterator[Client]:
    """A client with the rights of the cluster's owner; closed afterwards."""
    configuration = Configuration()
    load: Any = config.load_kube_config  # has no types
    await load(str(cluster.kubeconfig), client_configuration=configuration)
    async with Client(configuration, **options) as client:
        yield client
    await connections_ended()
