"""A real node: containerd, kubelet and kube-proxy with their configuration files."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster.controlplane import Daemon
from localcluster.host import cni_plugins
from localcluster.layout import CPU_NODE, DNS_SERVICE_IP, Endpoints, Layout, Spec
from localcluster.network import node_address, pod_range
from localcluster.nodeinit import TOOLS
from localcluster.processes import TOOL_PATH, python_program
from localcluster.tpu import TAINT, tpu_labels

PAUSE_IMAGE = "docker.io/tpujob/pause:v1"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
SHARED = "/mnt/shared"
_BIN, _ETC, _LOG = TOOLS / "bin", TOOLS / "etc", TOOLS / "log"


@dataclass(frozen=True)
class Node:
    """One node of a cluster."""

    name: str
    index: int
    spec: Spec
    layout: Layout
    endpoints: Endpoints

    @property
    def folder(self) -> Path:
        """The node's private folder on the host."""
        return self.layout.node(self.name)

    @property
    def var(self) -> Path:
        """What the node sees as /var."""
        return self.folder / "var"

    @property
    def pid_file(self) -> Path:
        """Holds the PID on the host of the node's first process."""
        return self.folder / "pid"

    @property
    def cgroup(self) -> str:
        """Parent of all cgroups of the node's containers."""
        return f"{self.layout.cgroup}/{self.name}"

    @property
    def has_tpus(self) -> bool:
        """Whether it plays a TPU host."""
        return self.name != CPU_NODE

    @property
    def subnet(self) -> int:
        """The k of the cluster's 10.k.0.0/16."""
        assert self.endpoints.subnet is not None
        return self.endpoints.subnet

    def daemon(self) -> Daemon:
        """The process that is the node. It is not restarted by itself: a power cut is one."""
        flags = ["--mount", "--uts", "--net", "--pid", "--fork", "--kill-child"]
        init = python_program("localcluster.nodeinit", str(self.folder / "init.json"))
        return Daemon(self.name, ["/usr/bin/unshare", *flags, "--", *init], restart=False)

    def write_files(self) -> None:
        """Write all configuration; containers and images of an earlier life stay."""
        for part in ("etc/cni", "stage", "var/lib/containerd", "var/log", "var/tmp", "var/lock"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        self._log_folder.mkdir(parents=True, exist_ok=True)
        run = self.var / "run"
        if not run.is_symlink():
            run.symlink_to("/run")
        files: dict[str, Any] = {
            "etc/kubelet.json": self._kubelet_config(),
            "etc/cni/10-pods.conflist": self._cni_config(),
            "init.json": self._init_spec(),
        }
        for name, content in files.items():
            (self.folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
        texts = {
            "etc/containerd.toml": _CONTAINERD_CONFIG.replace("CNI_PLUGINS", str(cni_plugins())),
            "etc/resolv.conf": f"nameserver {self.endpoints.host}\n",
            "etc/kubelet.kubeconfig": self._kubeconfig(self.name),
            "etc/kube-proxy.kubeconfig": self._kubeconfig("kube-proxy"),
            "etc/ca.crt": (self.layout.pki / "ca.crt").read_text(encoding="utf-8"),
        }
        for name, text in texts.items():
            (self.folder / name).write_text(text, encoding="utf-8")

    @property
    def _log_folder(self) -> Path:
        return self.layout.logs / self.name

    def _kubeconfig(self, user: str) -> str:
        return self.layout.kubeconfig_of(user).read_text(encoding="utf-8")

    def _init_spec(self) -> dict[str, Any]:
        binds = {
            str(_BIN): self.layout.bin,
            str(_ETC): self.folder / "etc",
            str(_LOG): self._log_folder,
            SHARED: self.layout.shared,
            "/var": self.var,
        }
        return {
            "name": self.name,
            "pid_file": str(self.pid_file),
            "address": node_address(self.subnet, self.index),
            "gateway": self.endpoints.host,
            "mounts": {
                "stage": str(self.folder / "stage"),
                "binds": {target: str(source) for target, source in binds.items()},
            },
            "daemons": [
                self._child("containerd", [f"--config={_ETC}/containerd.toml"]),
                self._child("kubelet", self._kubelet_flags()),
                self._child("kube-proxy", self._proxy_flags()),
            ],
        }

    def _child(self, name: str, flags: list[str]) -> dict[str, Any]:
        mark, _, value = self.layout.mark.partition("=")
        return {
            "name": name,
            "argv": [f"{_BIN}/{name}", *flags],
            "env": {"PATH": f"{_BIN}:{TOOL_PATH}", "HOME": "/run", mark: value},
            "log": f"{_LOG}/{name}.log",
            "restart": True,
        }

    def _kubelet_flags(self) -> list[str]:
        labels = tpu_labels(self.spec, self.index) if self.has_tpus else {}
        flags = {
            "config": f"{_ETC}/kubelet.json",
            "kubeconfig": f"{_ETC}/kubelet.kubeconfig",
            "hostname-override": self.name,
            "node-ip": node_address(self.subnet, self.index),
            "node-labels": ",".join(f"{key}={value}" for key, value in labels.items()),
        }
        return [f"--{key}={value}" for key, value in flags.items()]

    def _proxy_flags(self) -> list[str]:
        flags = {
            "kubeconfig": f"{_ETC}/kube-proxy.kubeconfig",
            "hostname-override": self.name,
            "proxy-mode": "nftables",
            "cluster-cidr": f"10.{self.subnet}.0.0/16",
            # These sysctls belong to the host.
            "conntrack-max-per-core": "0",
            "conntrack-tcp-timeout-established": "0s",
            "conntrack-tcp-timeout-close-wait": "0s",
        }
        return [f"--{key}={value}" for key, value in flags.items()]

    def _kubelet_config(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{_ETC}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "failCgroupV1": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "clusterDNS": [DNS_SERVICE_IP],
            "clusterDomain": "cluster.local",
            "resolvConf": f"{_ETC}/resolv.conf",
            # The disk is the host's: how full it is says nothing about this node, and no
            # image that is gone can be pulled again.
            "evictionHard": dict.fromkeys(
                ("nodefs.available", "nodefs.inodesFree", "imagefs.available"), "0%"
            ),
            "imageGCHighThresholdPercent": 100,
            "registerWithTaints": [TAINT] if self.has_tpus and self.spec.taint else [],
        }

    def _cni_config(self) -> dict[str, Any]:
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": pod_range(self.subnet, self.index)}]],
                "routes": [{"dst": "0.0.0.0/0"}],
                # On the tmpfs: a power cut frees all addresses.
                "dataDir": "/run/cni-addresses",
            },
        }
        portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, portmap]}


_CONTAINERD_CONFIG = f"""\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins.'io.containerd.cri.v1.images']
snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE_IMAGE}"

[plugins.'io.containerd.cri.v1.runtime']
# Without CAP_SYS_RESOURCE a container's score cannot go below ours.
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["CNI_PLUGINS"]
conf_dir = "{_ETC}/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
"""
