"""A cluster's life: up, in use, down."""

import contextlib
import fcntl
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from localcluster import binaries, cgroups, controlplane, host, kubeflow, kueue, network
from localcluster.cache import locked
from localcluster.kubeapi import Api, wait_for
from localcluster.layout import Layout, Spec, State
from localcluster.nodes import Nodes
from localcluster.processes import Processes, remove_tree
from localcluster.progress import Progress, say
from localcluster.start import API_READY_S, Start
from localcluster.template import identify


class NoClusterError(RuntimeError):
    """There is no cluster of this name; the message says how to get one."""


class Cluster:
    """A running cluster."""

    def __init__(self, name: str) -> None:
        """Attach to the cluster `name`.

        Raises:
            NoClusterError: There is none of this name.
        """
        self._layout = Layout.of(name)
        try:
            self._state = State.load(self._layout.state)
        except FileNotFoundError:
            raise NoClusterError(
                f"no cluster {name!r} is up; `python -m localcluster up --name {name}` makes one"
            ) from None
        self._processes = Processes(self._layout)
        token = self._state.tokens[controlplane.ADMIN]
        self.api = Api(self._state.endpoints.url, token, self._layout.pki / "ca.crt")
        self._nodes = Nodes(self._layout, self._state, self.api)

    @classmethod
    def up(
        cls,
        spec: Spec | None = None,
        *,
        images: Sequence[Path] = (),
        tied: bool = False,
        progress: Progress = say,
    ) -> "Cluster":
        """Bring a cluster up, cleaning first what a killed run of its name left.

        Args:
            spec: The cluster's shape.
            images: Docker-archives of images that all nodes shall have.
            tied: End the cluster when this process ends, however it ends.
            progress: Takes a line now and then.

        Raises:
            HostUnfitError: This host cannot run it.
            RuntimeError: It did not come up; the message ends with the guilty log's tail.
        """
        spec = spec or Spec()
        full = not spec.control_plane_only
        host.prepare(full)
        programs = binaries.ensure(_programs_of(spec), progress)
        layout = Layout.of(spec.name)
        _sweep()
        with locked(layout.lock, lambda: progress(f"cluster {spec.name} is busy: waiting")):
            _tear_down(layout)
            started = time.monotonic()
            try:
                Start(spec, layout, programs, progress).run(os.getpid() if tied else None, images)
            except BaseException:
                _tear_down(layout, keep_logs=True)
                raise
            progress(f"cluster {spec.name} is up after {time.monotonic() - started:.1f} s")
        return cls(spec.name)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self._layout.kubeconfig

    @property
    def shared_dir(self) -> Path:
        """A folder that every node sees as /mnt/shared."""
        return self._layout.shared

    @property
    def audit_log(self) -> Path:
        """What `Spec.audit` has recorded, one event per line."""
        return self._layout.audit_log

    @property
    def spec(self) -> Spec:
        """The shape it was brought up with."""
        return self._state.spec

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True
    ) -> "subprocess.CompletedProcess[str]":
        """Run kubectl against this cluster.

        Raises:
            subprocess.CalledProcessError: It failed and `check` is set.
        """
        binary = binaries.ensure({"kubectl"})["kubectl"]
        return subprocess.run(
            [str(binary), f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=check,
        )

    def load_image(self, archive: Path, progress: Progress = say) -> None:
        """Give an image in a docker-archive to all nodes that are switched on and lack it.

        Given to `up` instead, it is unpacked once for all nodes and clusters.

        Raises:
            RuntimeError: It is no docker-archive, or a node could not unpack it.
        """
        image = identify(archive)
        for number, node in enumerate(names := self.spec.real_nodes, start=1):
            if self._nodes.is_on(node):
                progress(f"images: {image.reference} to {node} ({number}/{len(names)})")
                self._nodes.load_image(node, image)

    def fail_node(self, name: str, *, network: bool = False) -> None:
        """Cut a node's power, or only its network; the rest of the cluster must find out."""
        if network:
            self._nodes.set_link(name, up=False)
        else:
            self._nodes.switch_off(name)

    def heal_node(self, name: str) -> None:
        """Undo `fail_node`, whichever it was; the node may need some seconds to be Ready."""
        if self._nodes.is_on(name):
            self._nodes.set_link(name, up=True)
        else:
            self._nodes.switch_on(name)
        # A Node object that was deleted meanwhile is made anew, without its TPUs.
        self._nodes.equip(name)

    def signal_container(self, node: str, container: str, signal: str) -> None:
        """Send a signal to the first process of a container, by its containerd id.

        Raises:
            subprocess.CalledProcessError: The node has no such container.
        """
        kill = ["--namespace=k8s.io", "tasks", "kill", f"--signal={signal}", container]
        subprocess.run([*self._nodes.ctr(node), *kill], check=True, capture_output=True)

    def stop_api_server(self) -> None:
        """End the API server, and keep it down; everything else goes on without it."""
        self._processes.stop("kube-apiserver")

    def start_api_server(self) -> None:
        """Undo `stop_api_server`; return when it is ready."""
        binary = binaries.ensure({"kube-apiserver"})["kube-apiserver"]
        endpoints, audit = self._state.endpoints, self.spec.audit
        server = controlplane.apiserver(binary, self._layout, endpoints, audit=audit)
        self._processes.start(server)
        wait_for("the API server", self.api.is_ready, API_READY_S)

    def add_kubeflow_trainer(self, progress: Progress = say) -> None:
        """Run Kubeflow Trainer's controller in this cluster, built first where it is missing."""
        endpoints = self._state.endpoints
        kubeflow.install(self._layout, self._processes, self.api, endpoints, progress)

    def add_kueue(self, progress: Progress = say) -> None:
        """Run Kueue's controller in this cluster, built first where it is missing."""
        endpoints = self._state.endpoints
        kueue.install(self._layout, self._processes, self.api, endpoints, progress)

    def pod_logs(self, node: str) -> Path:
        """Where a node's kubelet keeps the logs of its containers, as the host sees it."""
        return self._nodes[node].var / "log" / "pods"

    def processes(self) -> list[dict[str, Any]]:
        """Name, running, restarts and exit_code of every process of the control plane."""
        return self._processes.list()

    def down(self) -> None:
        """End the cluster and remove every trace of it."""
        down(self.spec.name)

    def __enter__(self) -> Self:
        """The cluster itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Bring it down."""
        self.down()


def down(name: str) -> bool:
    """End a cluster, or what a killed run of it left; say whether there was anything."""
    layout = Layout.of(name)
    with locked(layout.lock):
        existed = layout.root.exists()
        _tear_down(layout)
        layout.lock.unlink()
    return existed


def names() -> list[str]:
    """Names of the clusters that were brought up and not down."""
    folder = Layout.of("x").root.parent
    return sorted(path.parent.name for path in folder.glob("*/cluster.json"))


def _programs_of(spec: Spec) -> set[str]:
    nodes = set() if spec.control_plane_only else binaries.NODES
    return {*binaries.CONTROL_PLANE, *nodes, *({"kwok"} if spec.kwok else ())}


def _sweep() -> None:
    """Clear clusters that were tied to a process which is gone, whatever their names."""
    for name in names():
        layout = Layout.of(name)
        with layout.lock.open("a") as lock, contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_dead = Processes(layout).supervisor_pid is None
            if is_dead and State.load(layout.state).tied:
                _tear_down(layout)
                layout.lock.unlink()


def _tear_down(layout: Layout, *, keep_logs: bool = False) -> None:
    Processes(layout).end_all()
    if not layout.root.exists():
        return
    _leave_host(layout)
    for path in layout.root.iterdir():
        if keep_logs and path == layout.logs:
            continue
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
        else:
            path.unlink()
    if not keep_logs:
        layout.root.rmdir()


def _leave_host(layout: Layout) -> None:
    # Mounts and links went with the namespaces; cgroups have no owner.
    with contextlib.suppress(FileNotFoundError):
        uplink = State.load(layout.state).endpoints.uplink
        if uplink is not None:
            network.detach(uplink)
    cgroups.remove(layout.cgroup)
