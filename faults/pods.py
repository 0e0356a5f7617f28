"""Faults of pods, as users, schedulers and clouds make them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kubernetes.client.exceptions import ApiException

from faults.scene import Place, Scene, place_of


def delete(scene: Scene, place: Place) -> None:
    """Delete a pod as ``kubectl delete pod`` does: SIGTERM, and its grace period."""
    scene.kube.delete_pod(scene.pod(place).metadata.name)


def delete_by_force(scene: Scene, place: Place) -> None:
    """Delete a pod at once, without a word to its processes."""
    _delete_at_once(scene, [scene.pod(place)])


def evict(scene: Scene, place: Place) -> None:
    """Ask for a pod's eviction, as drains and the descheduler do."""
    evict_pod(scene, scene.pod(place).metadata.name)


def lose_slice(scene: Scene, place: Place) -> None:
    """All pods of a place's slice are gone at once."""
    workers = scene.kube.pods(scene.job, "worker")
    _delete_at_once(scene, [pod for pod in workers if place_of(pod).slice == place.slice])


def kill_coordinator(scene: Scene, _: Place) -> None:
    """The coordinator's pod is gone at once."""
    _delete_at_once(scene, scene.kube.pods(scene.job, "coordinator"))


def evict_pod(scene: Scene, name: str) -> None:
    """Evict a pod by name; one that is gone already is fine."""
    namespace = scene.kube.namespace
    eviction = {"metadata": {"name": name, "namespace": namespace}}
    try:
        scene.kube.core.create_namespaced_pod_eviction(name, namespace, eviction)
    except ApiException as error:
        if error.status != 404:
            raise


def _delete_at_once(scene: Scene, pods: Iterable[Any]) -> None:
    for pod in pods:
        scene.kube.core.delete_namespaced_pod(
            pod.metadata.name, scene.kube.namespace, grace_period_seconds=0
        )
