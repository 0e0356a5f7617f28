"""Switching real nodes on and off."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from localcluster import cgroups, network, tpu
from localcluster.kubeapi import Api, ApiError, wait_for
from localcluster.layout import Layout, State
from localcluster.node import CONTAINERD_SOCKET, Node
from localcluster.nodeinit import TOOLS
from localcluster.processes import Processes, carries, kill_and_wait
from localcluster.template import Image, load, read_record, write_record

_REGISTER_S = 240.0
_INIT_S = 60.0
IMAGE_RECORD = "images.json"
NODE_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr", "kubelet", "kube-proxy")


class Nodes:
    """The real nodes of one cluster."""

    def __init__(self, layout: Layout, state: State, api: Api) -> None:
        """Work on the nodes of the cluster that `layout` and `state` describe."""
        self._layout = layout
        self._processes = Processes(layout)
        self._api = api
        self._nodes = {
            name: Node(name, index, state.spec, layout, state.endpoints)
            for index, name in enumerate(state.spec.real_nodes)
        }

    def __getitem__(self, name: str) -> Node:
        """A node by name.

        Raises:
            ValueError: There is none; the message names those there are.
        """
        if name not in self._nodes:
            raise ValueError(f"no node {name!r}; there are {', '.join(self._nodes) or 'none'}")
        return self._nodes[name]

    def switch_on(self, name: str) -> None:
        """Give a node power: its first process, then its link."""
        node = self[name]
        node.write_files()
        cgroups.create(node.cgroup)
        node.pid_file.unlink(missing_ok=True)
        self._processes.start(node.daemon())
        wait_for(f"node {name} to start", node.pid_file.exists, _INIT_S, 0.01)
        network.link_node(self._supervisor(), node.subnet, node.index, name, self._pid(node))

    def switch_off(self, name: str) -> None:
        """Cut a node's power: everything on it ends at this moment."""
        node = self[name]
        if self.is_on(name):
            pid = self._pid(node)
            self._processes.stop(name)
            kill_and_wait(pid)
            # As on a real machine; else the next kubelet asks containerd about each for 3 s.
            cgroups.remove(node.cgroup)
            node.pid_file.unlink(missing_ok=True)

    def set_link(self, name: str, *, up: bool) -> None:
        """Connect a node to the network, or cut it off."""
        network.set_node_link(self._supervisor(), self[name].name, up=up)

    def is_on(self, name: str) -> bool:
        """Whether the node has power."""
        node = self[name]
        return node.pid_file.exists() and carries(self._pid(node), self._layout.mark)

    def equip(self, name: str) -> None:
        """Give the node its TPUs, once it has registered; they stay through a power cut."""
        node = self[name]
        wait_for(f"node {name} to register", lambda: self._exists(name), _REGISTER_S)
        if node.has_tpus:
            chips = {tpu.RESOURCE: str(node.spec.chips_per_host)}
            patch = {"status": {"capacity": chips, "allocatable": chips}}
            self._api.merge(f"/api/v1/nodes/{name}/status", patch)

    def load_image(self, name: str, image: Image) -> None:
        """Give a node an image, unless it has that very one."""
        record = self[name].folder / IMAGE_RECORD
        images = read_record(record)
        if images.get(image.reference) != image.digest:
            load(self.ctr(name), image.path)
            write_record(record, {**images, image.reference: image.digest})

    def ctr(self, name: str) -> Sequence[str]:
        """The command line of containerd's client on a node, to be completed."""
        pid = self._pid(self[name])
        enter = ["nsenter", f"--target={pid}", "--mount", "--"]
        return [*enter, f"{TOOLS}/bin/ctr", f"--address={CONTAINERD_SOCKET}"]

    def _exists(self, name: str) -> bool:
        try:
            self._api.get(f"/api/v1/nodes/{name}")
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def _supervisor(self) -> int:
        pid = self._processes.supervisor_pid
        if pid is None:
            raise RuntimeError(f"cluster {self._layout.root.name} is not running: bring it up anew")
        return pid

    @staticmethod
    def _pid(node: Node) -> int:
        try:
            return int(node.pid_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RuntimeError(f"node {node.name} is switched off") from None


def link_programs(programs: dict[str, Path], folder: Path) -> None:
    """Gather what nodes run in one folder, which they see as /run/tpujob/bin."""
    folder.mkdir(exist_ok=True)
    for name in NODE_PROGRAMS:
        target = folder / name
        try:
            os.link(programs[name], target)
        except OSError:  # another file system
            shutil.copy2(programs[name], target)
