"""Faults of what runs the cluster: the API server and the operator."""

from __future__ import annotations

from typing import Any

from kubernetes import client

from demo import install
from faults.scene import Place, Scene

OPERATOR = "app.kubernetes.io/name=tpujob-operator"
_REPLICAS = 2


def kill_operator(scene: Scene, _: Place) -> None:
    """The operator's pods are gone at once; their Deployment makes new ones."""
    scene.kube.core.delete_collection_namespaced_pod(
        install.NAMESPACE, label_selector=OPERATOR, grace_period_seconds=0
    )


def operators(scene: Scene) -> list[Any]:
    """The operator's pods."""
    found: list[Any] = scene.kube.core.list_namespaced_pod(
        install.NAMESPACE, label_selector=OPERATOR
    ).items
    return found


def leader(scene: Scene) -> str:
    """Name of the operator's pod that acts."""
    leases: Any = client.CoordinationV1Api(scene.kube.core.api_client)
    lease = leases.read_namespaced_lease("tpujob-operator", install.NAMESPACE)
    return str(lease.spec.holder_identity.rpartition("_")[0])


def stop_operator(scene: Scene, _: Place) -> None:
    """Scale the operator to nothing."""
    _scale(scene, 0)


def start_operator(scene: Scene, _: Place) -> None:
    """Undo ``stop_operator``."""
    _scale(scene, _REPLICAS)


def _scale(scene: Scene, replicas: int) -> None:
    apps: Any = client.AppsV1Api(scene.kube.core.api_client)
    [operator] = apps.list_namespaced_deployment(install.NAMESPACE, label_selector=OPERATOR).items
    change = {"spec": {"replicas": replicas}}
    apps.patch_namespaced_deployment_scale(operator.metadata.name, install.NAMESPACE, change)


def stop_api_server(scene: Scene, _: Place) -> None:
    """Nobody can reach the API.

    Raises:
        OutOfReachError: the API server is not ours.
    """
    scene.cluster.stop_api_server()


def start_api_server(scene: Scene, _: Place) -> None:
    """Undo ``stop_api_server``; returns when it is ready."""
    scene.cluster.start_api_server()
