"""Runs a system's job, makes a fault, and waits for what follows."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

from bench.recovery import measure, program
from bench.recovery.lines import Follower
from bench.recovery.measure import Recovery
from bench.recovery.systems import JOB, SAVE_EVERY, Setting, Shape, System
from demo.clusters import Target
from demo.kube import Kube
from faults import nodes, processes
from faults.scene import LEADER, Place, Scene
from localcluster.cluster import Cluster
from localcluster.kubeapi import ApiError, path_of, wait_for
from tpujob_operator.api.base import parse_rfc3339

_START_S = 180.0
_GONE_S = 120.0
_POLL_S = 0.1
#: A second one in the same pod or slice would be measured with the back-off after the first.
_FRESH = frozenset({"container", "delete", "node", "spare"})
#: A slice that loses a host goes to the other one's nodes, or a spare there takes over.
_SHAPES = {"node": Shape(1), "spare": Shape(1, spares=1)}

Say = Callable[[str], None]


class Runner:
    """One system on one cluster."""

    def __init__(self, cluster: Cluster, target: Target, key: str, system: System) -> None:
        self._cluster, self._target = cluster, target
        self._key, self._system = key, system
        self._namespace = f"recovery-{key}"
        self._kube = Kube(target.kubeconfig, self._namespace)
        self._scene = Scene(self._kube, JOB, cluster)
        self._follower: Follower | None = None
        self._running: dict[str, Any] | None = None
        self._shape = Shape()

    def measure(self, fault: str, limit_s: float) -> Recovery:
        """Make a fault half-way between two saves; wait for a new step, but not for ever."""
        if self._shape != _SHAPES.get(fault, Shape()):
            self.end()
        self._shape = _SHAPES.get(fault, Shape())
        follower = self._follower if self._running else self._start()
        assert follower is not None
        wait_for(
            f"half an interval of {self._system.title}",
            lambda: measure.is_ripe(follower.lines(), SAVE_EVERY),
            _START_S,
            _POLL_S / 5,
        )
        load, at = os.getloadavg()[0], time.time()
        FAULTS[fault](self)
        with contextlib.suppress(TimeoutError):
            wait_for(
                "a new step",
                lambda: measure.times(follower.lines(), at)[1] is not None,
                limit_s,
                _POLL_S,
            )
        first_s, new_s, lost = measure.times(follower.lines(), at)
        noticed_s = self._noticed_s(at)
        if new_s is None or self._system.fresh_job_each or fault in _FRESH:
            self.end()
        return Recovery(self._key, fault, first_s, new_s, lost, limit_s, load, noticed_s)

    def _noticed_s(self, at: float) -> float | None:
        """Seconds from a fault until our coordinator knew, as the job's status says."""
        if not self._system.is_ours or self._running is None:
            return None
        status = self._cluster.api.get(path_of(self._running)).get("status", {})
        noticed = [parse_rfc3339(one["at"]) / 1000 for one in status.get("incidents", [])]
        return min((one - at for one in noticed if one >= at), default=None)

    # ---- the job

    def _start(self) -> Follower:
        self._kube.ensure_namespace()
        setting = Setting(
            self._shape,
            self._cluster.api,
            self._namespace,
            self._target.trainer_image,
            self._target.volume,
            f"/shared/{self._namespace}-{time.time_ns()}",
        )
        manifest = self._system.manifest(setting)
        self._follower = Follower(self._cluster, self._namespace)
        self._cluster.api.apply(manifest)
        self._running = manifest
        return self._follower

    def end(self) -> None:
        """Remove the job, at once, and give all nodes power."""
        self._heal()
        if self._running is None or self._follower is None:
            return
        with contextlib.suppress(ApiError):
            path = path_of(self._running)
            self._cluster.api.request("DELETE", path, {"propagationPolicy": "Background"})
        wait_for("the pods to be gone", self._are_pods_gone, _GONE_S, 1.0)
        self._follower.stop()
        self._running = self._follower = None

    def _are_pods_gone(self) -> bool:
        """Whether they are; else they are given no time to end in."""
        found = self._kube.core.list_namespaced_pod(self._namespace).items
        for pod in found:
            for status in pod.status.container_statuses or []:
                if status.state.running:
                    self._signal(pod, status.container_id, "SIGKILL")
        return not found

    def _heal(self) -> None:
        nodes.heal_all(self._scene, LEADER)
        are_ready = functools.partial(nodes.are_all_ready, self._scene)
        wait_for("all nodes to be ready", are_ready, _START_S, 0.5)

    # ---- its pods

    @property
    def last(self) -> int:
        """The last rank."""
        return self._shape.hosts - 1

    def _pod(self, rank: int) -> Any:
        selector = self._system.selector
        found = self._kube.core.list_namespaced_pod(self._namespace, label_selector=selector)
        return next(pod for pod in found.items if self._system.rank(pod) == rank)

    def _signal(self, pod: Any, container: str, name: str) -> None:
        identity = container.removeprefix("containerd://")
        with contextlib.suppress(subprocess.CalledProcessError):  # it has just ended
            self._cluster.signal_container(pod.spec.node_name, identity, name)

    def _place(self, rank: int) -> Place:
        return Place(*divmod(rank, program.HOSTS_PER_SLICE))

    def kill(self, rank: int) -> None:
        """SIGKILL a trainer: for the others that is their container's main process."""
        if self._system.is_ours:
            processes.kill(self._scene, self._place(rank))
        else:
            self.kill_container(rank, "SIGKILL")

    def stop(self, rank: int) -> None:
        """SIGSTOP a trainer."""
        if self._system.is_ours:
            processes.stop(self._scene, self._place(rank))
        else:
            self.kill_container(rank, "SIGSTOP")

    def block(self, rank: int) -> None:
        """Have a trainer's main thread stand still."""
        pod = self._pod(rank).metadata.name
        self._kube.exec(pod, self._system.container, ["touch", program.BLOCK])

    def kill_container(self, rank: int, name: str = "SIGKILL") -> None:
        """Send a signal to the first process of a pod's container."""
        pod = self._pod(rank)
        [status] = pod.status.container_statuses
        self._signal(pod, status.container_id, name)

    def delete(self, rank: int) -> None:
        """Delete a pod, with its grace period."""
        self._kube.delete_pod(self._pod(rank).metadata.name)

    def cut_power(self) -> None:
        """Cut the power of the last host's node, which stays away."""
        if self._system.is_ours:
            slices = range(self._shape.slices + self._shape.spares)
            training = next(n for n in slices if self._scene.trainer_pid(Place(n, 1)))
            nodes.cut_power(self._scene, Place(training, 1))
        else:
            self._cluster.fail_node(self._pod(self.last).spec.node_name)


FAULTS: dict[str, Callable[[Runner], None]] = {
    "kill": lambda runner: runner.kill(runner.last),
    "leader": lambda runner: runner.kill(0),
    "stop": lambda runner: runner.stop(runner.last),
    "block": lambda runner: runner.block(runner.last),
    "container": lambda runner: runner.kill_container(runner.last),
    "delete": lambda runner: runner.delete(runner.last),
    "node": Runner.cut_power,
    "spare": Runner.cut_power,
}
TITLES = {
    "kill": "SIGKILL of one trainer",
    "leader": "SIGKILL of the leader's trainer",
    "stop": "SIGSTOP of one trainer",
    "block": "main thread of one trainer stuck",
    "container": "container of one trainer killed",
    "delete": "pod deleted (SIGTERM, then its grace period)",
    "node": "node without power, no spare; the slice goes to other nodes",
    "spare": "node without power, with a spare slice",
}
#: For systems whose trainer is the container's main process.
SAME = {"container": "kill"}
#: The others have nothing like it.
OURS_ALONE = frozenset({"spare"})
