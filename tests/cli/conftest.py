"""The command line against a real control plane."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from localcluster.cluster import Cluster
from tests.namespaced import Namespaced
from tpujob_operator.cli.__main__ import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def there(control_plane: Cluster, namespace: str) -> Namespaced:
    """What is in the cluster."""
    return Namespaced(control_plane.api, namespace)


@pytest.fixture
def run(control_plane: Cluster, namespace: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in the namespace; returns exit status, output and errors."""
    access = ["-n", namespace, "--kubeconfig", str(control_plane.kubeconfig)]

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main([*arguments, *access])
        told = capsys.readouterr()
        return status, told.out, told.err

    return call
