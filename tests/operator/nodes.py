"""Node objects and leases as kubelets would make them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from localcluster import kwok
from localcluster.cluster import Cluster
from localcluster.kubeapi import ApiError
from localcluster.layout import Spec
from tpujob_tpu.catalogue import ACCELERATOR_LABEL, HOSTNAME_LABEL, NODE_POOL_LABEL

#: A kubelet renews its lease every ten seconds.
_BEAT_S = 5.0


def tpu_labels(name: str) -> dict[str, str]:
    """Labels of a TPU node that is a node pool of its own."""
    return {ACCELERATOR_LABEL: "tpu-v5-lite-podslice", NODE_POOL_LABEL: f"pool-of-{name}"}


def make_node(
    cluster: Cluster,
    name: str,
    *,
    ready: str = "True",
    labels: Mapping[str, str] | None = None,
    taints: Iterable[Mapping[str, str]] = (),
) -> None:
    """A node that is closed to the scheduler: tests bind their pods themselves.

    The node controller adds and removes taints of its own at any time after that.
    """
    cluster.api.apply(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": dict(labels or {})},
            "spec": {"unschedulable": True, "taints": list(taints)},
        }
    )
    condition = {
        "type": "Ready", "status": ready, "reason": "Test", "message": "",
        "lastHeartbeatTime": _now(), "lastTransitionTime": _now(),
    }  # fmt: skip
    cluster.api.merge(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}})


def simulate_pools(
    cluster: Cluster, prefix: str, accelerator: str, topology: str, *, pools: int, hosts: int
) -> dict[str, str]:
    """Node pools whose kubelets kwok plays, open to the scheduler; the pool of each node.

    By name, the hosts of a pool do not follow each other.
    """
    shape = Spec(
        control_plane_only=True,
        kwok=pools * hosts,
        hosts_per_slice=hosts,
        accelerator=accelerator,
        topology=topology,
    )
    made = {}
    for index, node in enumerate(kwok.nodes(shape)[: pools * hosts]):
        metadata = node["metadata"]
        pool = f"{prefix}-{metadata['labels'][NODE_POOL_LABEL]}"
        metadata["name"] = f"{prefix}-{index % hosts}-{index // hosts}"
        metadata["labels"] |= {HOSTNAME_LABEL: metadata["name"], NODE_POOL_LABEL: pool}
        cluster.api.request("POST", "/api/v1/nodes", node)
        made[metadata["name"]] = pool
    return made


def remove_node(cluster: Cluster, name: str) -> None:
    """Delete a node, if it is there still."""
    try:
        cluster.api.request("DELETE", f"/api/v1/nodes/{name}")
    except ApiError as error:
        if error.status != 404:
            raise


def renew_lease(cluster: Cluster, name: str) -> None:
    """A sign of life of a node's kubelet."""
    cluster.api.apply(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": "kube-node-lease"},
            "spec": {
                "holderIdentity": name,
                "leaseDurationSeconds": 40,
                "renewTime": _now("%Y-%m-%dT%H:%M:%S.%fZ"),
            },
        }
    )


@contextlib.contextmanager
def kubelets(cluster: Cluster, *names: str) -> Iterator[None]:
    """Signs of life of these nodes, until it is left.

    Without them the controllers find a node dead after its grace period, and take its pods away.
    """
    stop = threading.Event()

    def beat() -> None:
        while True:
            for name in names:
                renew_lease(cluster, name)
            if stop.wait(_BEAT_S):
                return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _now(form: str = "%Y-%m-%dT%H:%M:%SZ") -> str:
    return datetime.now(UTC).strftime(form)
