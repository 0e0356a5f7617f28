"""The operator's own client in the test's process, against the real API server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

from kubernetes.aio import config
from kubernetes.aio.client import Configuration

from tests.eventloops import connections_ended
from tpujob_operator.shell.client import Client


class HasKubeconfig(Protocol):
    """A cluster, or a proxy in front of one."""

    @property
    def kubeconfig(self) -> Path:
        """How to reach it."""


@contextlib.asynccontextmanager
async def client_of(server: HasKubeconfig, **options: Any) -> AsyncIterator[Client]:
    """A client with the rights of the cluster's owner; closed afterwards."""
    configuration = Configuration()
    load: Any = config.load_kube_config  # has no types
    await load(str(server.kubeconfig), client_configuration=configuration)
    async with Client(configuration, **options) as client:
        yield client
    await connections_ended()
