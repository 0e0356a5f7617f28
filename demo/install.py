"""Installs the operator with its Helm chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helm_python import Config

RELEASE = "tpujob"
NAMESPACE = "tpujob-system"
CHART = Path(__file__).resolve().parent.parent / "charts" / "tpujob-operator"
_TIMEOUT_S = 180


def install(kubeconfig: Path | None, values: dict[str, Any]) -> None:
    """Install or upgrade the release, and wait until the operator is ready.

    Raises:
        helm_python.HelmError: it did not become ready; the message says what is missing.
    """
    with Config(
        kubeconfig_path=str(kubeconfig) if kubeconfig else None, namespace=NAMESPACE
    ) as helm:
        present = any(release["name"] == RELEASE for release in helm.list())
        act = helm.upgrade if present else helm.install
        extra: dict[str, Any] = {} if present else {"create_namespace": True}
        act(
            CHART,
            RELEASE,
            values,
            namespace=NAMESPACE,
            wait="watcher",
            timeout=_TIMEOUT_S,
            **extra,
        )
