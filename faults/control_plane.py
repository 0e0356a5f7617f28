"""Faults of what runs the cluster: the API server and the operator."""

from __future__ import annotations

from demo import install
from faults.scene import Place, Scene

OPERATOR = "app.kubernetes.io/name=tpujob-operator"


def kill_operator(scene: Scene, _: Place) -> None:
    """The operator's pods are gone at once; their Deployment makes new ones."""
    scene.kube.core.delete_collection_namespaced_pod(
        install.NAMESPACE, label_selector=OPERATOR, grace_period_seconds=0
    )


def stop_api_server(scene: Scene, _: Place) -> None:
    """Nobody can reach the API.

    Raises:
        OutOfReachError: the API server is not ours.
    """
    scene.cluster.stop_api_server()


def start_api_server(scene: Scene, _: Place) -> None:
    """Undo ``stop_api_server``; returns when it is ready."""
    scene.cluster.start_api_server()
