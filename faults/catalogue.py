"""The catalogue: every fault by its name, with what undoes it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from faults import control_plane, nodes, pods, processes
from faults.scene import LEADER, Place, Scene

Injector = Callable[[Scene, Place], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One way to hurt a job."""

    title: str
    make: Injector
    heal: Injector | None = None  # None: there is nothing to undo
    is_below: bool = False  # made below Kubernetes, so on the local cluster only
    is_obeyed: bool = False  # by a program that takes orders, see ``faults.training``


CATALOGUE = {
    "kill-trainer": Fault("SIGKILL a trainer", processes.kill),
    "crash-trainer": Fault("crash a trainer with SIGSEGV", processes.crash),
    "stop-trainer": Fault("SIGSTOP a trainer", processes.stop),
    "kill-container": Fault("kill a worker's container", processes.kill_container, is_below=True),
    "delete-pod": Fault("delete a worker pod", pods.delete),
    "delete-pod-by-force": Fault("delete a worker pod at once", pods.delete_by_force),
    "evict-pod": Fault("evict a worker pod", pods.evict),
    "lose-slice": Fault("delete all pods of a slice at once", pods.lose_slice),
    "kill-coordinator": Fault("delete the coordinator at once", pods.kill_coordinator),
    "drain-node": Fault("drain a node", nodes.drain, nodes.uncordon_all),
    "taint-node": Fault("taint a node with NoExecute", nodes.taint, nodes.untaint_all),
    "cut-power": Fault("cut a node's power", nodes.cut_power, nodes.heal_all, is_below=True),
    "cut-network": Fault("cut a node's network", nodes.cut_network, nodes.heal_all, is_below=True),
    "kill-operator": Fault("delete the operator at once", control_plane.kill_operator),
    "stop-operator": Fault(
        "scale the operator to nothing", control_plane.stop_operator, control_plane.start_operator
    ),
    "stop-api-server": Fault(
        "stop the API server",
        control_plane.stop_api_server,
        control_plane.start_api_server,
        is_below=True,
    ),
    "exit-trainer": Fault("have a trainer exit with code 3", processes.leave, is_obeyed=True),
    "block-trainer": Fault("have a trainer's main thread stuck", processes.block, is_obeyed=True),
    "exhaust-memory": Fault(
        "have a trainer take all memory", processes.exhaust_memory, is_obeyed=True
    ),
    "exhaust-container": Fault(
        "take all memory of a container", processes.exhaust_container, is_obeyed=True
    ),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """A fault that was made: when, and to what."""

    title: str
    at_ms: int
    target: str


def make(name: str, scene: Scene, place: Place = LEADER) -> Made:
    """Make a fault of the catalogue now.

    Raises:
        KeyError: there is none of this name.
    """
    fault = CATALOGUE[name]
    at_ms = time.time_ns() // 1_000_000
    fault.make(scene, place)
    return Made(fault.title, at_ms, f"slice {place.slice} host {place.host} of {scene.job}")
