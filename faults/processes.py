"""Faults of processes and containers."""

from __future__ import annotations

from faults.scene import TRAINER, Place, Scene
from faults.training import ORDER

_REFUSED = 3


def kill(scene: Scene, place: Place) -> None:
    """SIGKILL a trainer; its agent and its pod are not touched."""
    scene.signal_trainer(place, "KILL")


def crash(scene: Scene, place: Place) -> None:
    """End a trainer as a fault of its memory would."""
    scene.signal_trainer(place, "SEGV")


def stop(scene: Scene, place: Place) -> None:
    """SIGSTOP a trainer: it is alive and makes no progress."""
    scene.signal_trainer(place, "STOP")


def block(scene: Scene, place: Place) -> None:
    """Have a trainer's main thread stuck in its own code."""
    _order(scene, place, "block")


def leave(scene: Scene, place: Place) -> None:
    """Have a trainer exit as programs do that refuse their input."""
    leave_with(scene, place, _REFUSED)


def leave_with(scene: Scene, place: Place, code: int) -> None:
    """Have a trainer exit with a code."""
    _order(scene, place, f"exit {code}")


def exhaust_memory(scene: Scene, place: Place) -> None:
    """Have a trainer take memory until the kernel kills it at its container's limit."""
    _order(scene, place, "hog")


def exhaust_container(scene: Scene, place: Place) -> None:
    """The same, but the kernel chooses the container's first process, and all end with it.

    With version 2 of cgroups the kubelet asks for that always. With version 1 it takes many small
    processes, and a limit that is no tiny part of the node: by it the kubelet sets their scores.
    """
    scene.shell(place, "echo 1000 > /proc/1/oom_score_adj")
    _order(scene, place, "swarm")


def kill_container(scene: Scene, place: Place) -> None:
    """SIGKILL a container's first process from its node: the agent is gone, and all with it.

    Raises:
        OutOfReachError: the nodes are not ours; no process inside can do it.
    """
    signal_container(scene, place, "SIGKILL")


def signal_container(scene: Scene, place: Place, name: str) -> None:
    """Send a signal to a container's first process from its node.

    Raises:
        OutOfReachError: the nodes are not ours.
    """
    pod = scene.pod(place)
    [container] = [one for one in pod.status.container_statuses if one.name == TRAINER]
    identity = container.container_id.removeprefix("containerd://")
    scene.cluster.signal_container(pod.spec.node_name, identity, name)


def _order(scene: Scene, place: Place, words: str) -> None:
    # Whole or not at all: the program looks at every step.
    scene.shell(place, f"echo '{words}' > {ORDER}.new && mv {ORDER}.new {ORDER}")
