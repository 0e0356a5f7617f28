"""What a cluster is asked to be, where its files lie and where its servers listen."""

import hashlib
import json
import random
import re
import socket
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from localcluster.cache import cache_dir

SERVICE_CIDR = "10.96.0.0/16"
DNS_SERVICE_IP = "10.96.0.10"
KWOK_POD_CIDR = "10.202.0.0/16"
CPU_NODE = "cpu0"
# Node i has address .0.(10+i) and pods .(1+i).0/24 of the cluster's /16.
MAX_NODES = 100

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?")


@dataclass(frozen=True)
class Spec:
    """The shape of a cluster."""

    name: str = "tpujob"
    nodes: int = 4
    """Real nodes that look like TPU hosts. One more without TPUs, `cpu0`, comes with them."""
    kwok: int = 0
    """Simulated nodes that look like TPU hosts; their pods run no containers."""
    control_plane_only: bool = False
    hosts_per_slice: int = 2
    accelerator: str = "tpu-v5-lite-podslice"
    topology: str = "2x4"
    chips_per_host: int = 4
    taint: bool = True
    """Taint TPU nodes with google.com/tpu=present:NoSchedule, as GKE does."""
    node_monitor_grace_s: int = 50
    """Silence after which a node counts as not ready (Kubernetes 1.36's default)."""
    audit: bool = False
    """Record who asked the API server for what, see `Layout.audit_log`."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"cluster name {self.name!r}: use at most 32 lower-case letters, digits and "
                "dashes, beginning and ending with a letter or digit"
            )
        least = 0 if self.control_plane_only else 1
        if not self.control_plane_only and not least <= self.nodes <= MAX_NODES:
            raise ValueError(f"nodes={self.nodes}: from {least} to {MAX_NODES} real nodes work")
        if self.kwok < 0:
            raise ValueError(f"kwok={self.kwok}: cannot be negative")
        if self.hosts_per_slice < 1:
            raise ValueError(f"hosts_per_slice={self.hosts_per_slice}: at least 1")

    @property
    def tpu_nodes(self) -> list[str]:
        """Names of the real nodes with TPUs."""
        return [] if self.control_plane_only else [f"node{i}" for i in range(self.nodes)]

    @property
    def real_nodes(self) -> list[str]:
        """Names of all real nodes."""
        return [] if self.control_plane_only else [*self.tpu_nodes, CPU_NODE]

    @property
    def kwok_nodes(self) -> list[str]:
        """Names of the simulated nodes with TPUs."""
        return [f"kwok-{i}" for i in range(self.kwok)]


@dataclass(frozen=True)
class Endpoints:
    """Where the servers of a control plane listen."""

    host: str
    """Address of the API server, for the host, nodes and pods alike."""
    bind: str
    apiserver: int = 6443
    etcd: int = 2379
    etcd_peer: int = 2380
    jobset: int = 9443
    subnet: int | None = None
    """The k of the cluster's own 10.k.0.0/16; None on loopback."""
    uplink: int | None = None
    """Index of the network interface that links the host to it."""

    @classmethod
    def loopback(cls) -> "Endpoints":
        """Free ports of 127.0.0.1, outside the range of outgoing connections."""
        apiserver, etcd, peer, jobset = free_ports(4)
        return cls("127.0.0.1", "127.0.0.1", apiserver, etcd, peer, jobset)

    @classmethod
    def in_subnet(cls, subnet: int, uplink: int) -> "Endpoints":
        """Default ports in the network namespace of a cluster with nodes."""
        return cls(f"10.{subnet}.0.1", "0.0.0.0", subnet=subnet, uplink=uplink)  # noqa: S104

    @property
    def url(self) -> str:
        """URL of the API server."""
        return f"https://{self.host}:{self.apiserver}"


def free_ports(count: int) -> list[int]:
    """Distinct TCP ports of 127.0.0.1 that nothing listens on now.

    They are below the kernel's ephemeral range, so that no outgoing connection takes
    one between this answer and its use.
    """
    ports: list[int] = []
    # Random, so that clusters that start at the same moment do not try the same ones.
    for port in random.sample(range(20000, 32000), 12000):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise RuntimeError("no free TCP ports between 20000 and 32000 on 127.0.0.1")


@dataclass(frozen=True)
class Layout:
    """The files of one cluster."""

    root: Path

    @classmethod
    def of(cls, name: str) -> "Layout":
        """The cluster's folder in the cache: the same disk as the images its nodes link to."""
        return cls(cache_dir("clusters") / name)

    @property
    def lock(self) -> Path:
        """Held while the cluster is brought up or down."""
        return self.root.with_name(f".{self.root.name}.lock")

    @property
    def state(self) -> Path:
        """What `up` made, for the commands that come later."""
        return self.root / "cluster.json"

    @property
    def kubeconfig(self) -> Path:
        """Credentials of the administrator."""
        return self.root / "kubeconfig"

    @property
    def shared(self) -> Path:
        """The folder that every node sees as /mnt/shared."""
        return self.root / "shared"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.root / "pki"

    @property
    def bin(self) -> Path:
        """Links to the programs that nodes run."""
        return self.root / "bin"

    @property
    def logs(self) -> Path:
        """One file per process of the control plane, one folder per node."""
        return self.root / "logs"

    @property
    def audit_log(self) -> Path:
        """One audit.k8s.io event per line and request, where the cluster was asked for it."""
        return self.root / "audit.log"

    @property
    def mark(self) -> str:
        """An environment entry that every process of this cluster carries."""
        return f"TPUJOB_LOCALCLUSTER={self.root}"

    @property
    def cgroup(self) -> str:
        """Name of the cluster's cgroup: unique on the host, whatever cache it is in."""
        return f"tpujob-{hashlib.sha256(str(self.root).encode()).hexdigest()[:10]}"

    def node(self, name: str) -> Path:
        """Private folder of a node."""
        return self.root / "nodes" / name

    def kubeconfig_of(self, user: str) -> Path:
        """Credentials of a component or a node."""
        return self.root / "kubeconfigs" / user


@dataclass
class State:
    """The record of a running cluster."""

    spec: Spec
    endpoints: Endpoints
    tokens: dict[str, str] = field(default_factory=dict)
    """Bearer token of each identity."""
    tied: bool = False
    """Whether it ends with the process that brought it up."""

    def save(self, path: Path) -> None:
        """Write the record, readable by its owner only."""
        temporary = path.with_suffix(".tmp")
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        temporary.rename(path)

    @classmethod
    def load(cls, path: Path) -> "State":
        """Read the record.

        Raises:
            FileNotFoundError: No cluster was brought up here.
        """
        read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            Spec(**read["spec"]),
            Endpoints(**read["endpoints"]),
            read["tokens"],
            read.get("tied", False),
        )
