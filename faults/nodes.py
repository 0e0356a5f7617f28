"""Faults of nodes: those an administrator makes, and those nobody wants."""

from __future__ import annotations

from typing import Any

from faults import pods
from faults.scene import Place, Scene

TAINT = "faults.tpujob.dev/broken"


def drain(scene: Scene, place: Place) -> None:
    """Cordon the node of a place and evict the job's pods there, as ``kubectl drain`` does."""
    node = scene.pod(place).spec.node_name
    scene.kube.core.patch_node(node, {"spec": {"unschedulable": True}})
    for pod in scene.kube.pods(scene.job, "worker"):
        if pod.spec.node_name == node:
            pods.evict_pod(scene, pod.metadata.name)


def uncordon_all(scene: Scene, _: Place) -> None:
    """Undo ``drain``."""
    for node in scene.kube.core.list_node().items:
        if node.spec.unschedulable:
            scene.kube.core.patch_node(node.metadata.name, {"spec": {"unschedulable": None}})


def taint(scene: Scene, place: Place) -> None:
    """Taint the node of a place with NoExecute: whoever does not tolerate it has to go."""
    node = scene.kube.core.read_node(scene.pod(place).spec.node_name)
    mine = {"key": TAINT, "effect": "NoExecute"}
    _set_taints(scene, node, [*(node.spec.taints or []), mine])


def untaint_all(scene: Scene, _: Place) -> None:
    """Undo ``taint``."""
    for node in scene.kube.core.list_node().items:
        others = [one for one in node.spec.taints or [] if one.key != TAINT]
        if others != (node.spec.taints or []):
            _set_taints(scene, node, others)


def _set_taints(scene: Scene, node: Any, taints: list[Any]) -> None:
    # A JSON patch, because it means the same whatever the client takes a dictionary for.
    change = {"op": "add", "path": "/spec/taints", "value": taints}
    scene.kube.core.patch_node(node.metadata.name, [change])


def cut_power(scene: Scene, place: Place) -> None:
    """Cut the power of a place's node.

    Raises:
        OutOfReachError: the nodes are not ours.
    """
    scene.cluster.fail_node(scene.pod(place).spec.node_name)


def cut_network(scene: Scene, place: Place) -> None:
    """Cut a place's node off the network; its processes go on.

    Raises:
        OutOfReachError: the nodes are not ours.
    """
    scene.cluster.fail_node(scene.pod(place).spec.node_name, network=True)


def are_all_ready(scene: Scene) -> bool:
    """Whether all nodes of the cluster are Ready."""
    found = scene.kube.core.list_node().items
    conditions = [one for node in found for one in node.status.conditions]
    return all(one.status == "True" for one in conditions if one.type == "Ready")


def heal_all(scene: Scene, _: Place) -> None:
    """Give all nodes power and network again."""
    for node in scene.cluster.spec.tpu_nodes:
        scene.cluster.heal_node(node)
