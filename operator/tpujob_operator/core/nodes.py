"""Nodes as decisions see them: whether they live, and what is announced about them.

The signals are those of GKE's TPU nodes: the taint of a node that is going to be
terminated, the labels of its maintenance, the end of its run time, and the words of a
kubelet that shuts down.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from tpujob_agent.notices import Notice
from tpujob_agent.protocol import Cause
from tpujob_operator.api.base import parse_rfc3339
from tpujob_tpu.catalogue import ACCELERATOR_LABEL, NODE_POOL_LABEL, TOPOLOGY_LABEL
from tpujob_tpu.provisioning import PREEMPTIBLE_LABEL, SPOT_LABEL, TERMINATION_ANNOTATION

Object = Mapping[str, Any]
#: GKE's words for accelerator and topology of a node's slice.
Shape = tuple[str, str]
TERMINATION_TAINT = "cloud.google.com/impending-node-termination"
MAINTENANCE_LABEL = "cloud.google.com/active-node-maintenance"
MAINTENANCE_NOW_LABEL = "cloud.google.com/perform-maintenance"
MAINTENANCE_TIME_LABEL = "cloud.google.com/scheduled-maintenance-time"
#: Ours, for nodes that are kept from all jobs; its value is the end, in seconds since the epoch.
SUSPECT_TAINT = "tpujob.dev/suspected"
ZONE_LABEL = "topology.kubernetes.io/zone"
_SHUTTING_DOWN = "node is shutting down"


@dataclasses.dataclass(frozen=True, slots=True)
class NodeView:
    """What is kept of a Node object: the whole is large, and there are thousands."""

    name: str
    uid: str
    created_ms: int
    pool: str = ""
    shape: Shape = ("", "")
    zone: str = ""
    is_spot: bool = False
    is_ready: bool = False
    notice: Notice | None = None
    suspected_until_ms: int = 0  # by our taint; 0: it has none
    is_gone: bool = False  # the object has been deleted

    @classmethod
    def of(cls, node: Object) -> NodeView:
        """The view of a Node object."""
        meta = node["metadata"]
        labels = meta.get("labels") or {}
        is_spot = any(labels.get(label) == "true" for label in (SPOT_LABEL, PREEMPTIBLE_LABEL))
        return cls(
            name=meta["name"],
            uid=meta["uid"],
            created_ms=parse_rfc3339(meta["creationTimestamp"]),
            pool=str(labels.get(NODE_POOL_LABEL, "")),
            shape=(str(labels.get(ACCELERATOR_LABEL, "")), str(labels.get(TOPOLOGY_LABEL, ""))),
            zone=zone_of(node),
            is_spot=is_spot,
            is_ready=_is_ready(node),
            suspected_until_ms=_suspected_until_ms(node),
            notice=_notice(node, labels, is_spot=is_spot),
        )


def _notice(node: Object, labels: Mapping[str, str], *, is_spot: bool) -> Notice | None:
    """What is announced about a node, the most urgent first."""
    taken = Cause.PREEMPTION if is_spot else Cause.MAINTENANCE
    name = node["metadata"]["name"]
    if TERMINATION_TAINT in _taints(node):
        return Notice(name, taken, 0, "its node is about to be terminated")
    if labels.get(MAINTENANCE_LABEL) == "ONGOING" or labels.get(MAINTENANCE_NOW_LABEL) == "true":
        return Notice(name, Cause.MAINTENANCE, 0, "maintenance of its node has begun")
    if _SHUTTING_DOWN in str((_ready(node) or {}).get("message", "")):
        return Notice(name, taken, 0, "its node is shutting down")
    return min(_planned(node, labels), key=lambda notice: notice.at_ms, default=None)


def _planned(node: Object, labels: Mapping[str, str]) -> Iterator[Notice]:
    """What is to come at a known time."""
    meta = node["metadata"]
    at = labels.get(MAINTENANCE_TIME_LABEL, "")
    if at.isdecimal():  # seconds since the epoch
        words = "maintenance of its node is planned"
        yield Notice(meta["name"], Cause.MAINTENANCE, int(at) * 1000, words)
    end = (meta.get("annotations") or {}).get(TERMINATION_ANNOTATION, "")
    with contextlib.suppress(ValueError):
        yield Notice(meta["name"], Cause.PREEMPTION, parse_rfc3339(end), "its node's run time ends")


@dataclasses.dataclass(frozen=True, slots=True)
class Pulse:
    """Signs of life of a node, by the operator's own clock: that of the node may be wrong."""

    exists: bool = True
    lease: str = ""  # when its kubelet last renewed it, as the kubelet says
    silent_since_ms: int = 0  # with one and the same lease since then; 0: it has none
    is_ready: bool = False  # so Kubernetes says, some time after the last sign of life, too

    def proof_of_death(self, limit_ms: int, now_ms: int) -> str:
        """Why the node is gone for certain, in words; empty: it may come back."""
        if not self.exists:
            return "no longer exists"
        is_silent = self.silent_since_ms and now_ms - self.silent_since_ms >= limit_ms
        if is_silent and not self.is_ready:
            return (
                f"is not Ready and has not renewed its lease for {limit_ms / 1000:g} s, nor before"
            )
        return ""


#: More than this share of the nodes of a zone, or of all, and more than so many, are not lost one
#: by one: the node lifecycle controller stops evictions at 55 % of a zone.
_OUTAGE_SHARE, _OUTAGE_NODES = 0.5, 10


def zone_of(node: Object) -> str:
    """The zone that a Node object says it is in; empty: it does not say."""
    return str((node["metadata"].get("labels") or {}).get(ZONE_LABEL, ""))


def is_mass_outage(unready: int, total: int) -> bool:
    """Whether so many nodes are not Ready at once that the network between is the likely cause."""
    return unready > _OUTAGE_NODES and unready > _OUTAGE_SHARE * total


def take_pulse(
    before: Pulse | None,
    node: Object | None,
    lease: Object | None,
    now_ms: int,
    *,
    is_outage: bool = False,
) -> Pulse:
    """The pulse of a node that was looked at now.

    Args:
        before: what was found the last time.
        node: the Node object; None: there is none.
        lease: its object in kube-node-lease. Without one nothing tells a dead node from a
            kubelet that cannot report, so it counts as alive.
        now_ms: when it was looked at.
        is_outage: most nodes, or most of its zone, seem to be gone at once. Their silence is no
            proof then, and counts from the end of the outage on.
    """
    if node is None:
        return Pulse(exists=False)
    renewed = str(((lease or {}).get("spec") or {}).get("renewTime") or "")
    is_ready = _is_ready(node)
    if not renewed:
        return Pulse(is_ready=is_ready)
    is_first = before is None or before.lease != renewed or (is_ready and not before.is_ready)
    if before is None or is_first or is_outage:
        return Pulse(lease=renewed, silent_since_ms=now_ms, is_ready=is_ready)
    return dataclasses.replace(before, is_ready=is_ready)


def _suspected_until_ms(node: Object) -> int:
    value = _taints(node).get(SUSPECT_TAINT)
    if value is None:
        return 0
    return int(value) * 1000 if value.isdecimal() else 1  # not our writing: it is over


def _taints(node: Object) -> dict[str, str]:
    taints = node.get("spec", {}).get("taints") or ()
    return {taint["key"]: str(taint.get("value", "")) for taint in taints}


def _is_ready(node: Object) -> bool:
    return (_ready(node) or {}).get("status") == "True"


def _ready(node: Object) -> Object | None:
    conditions = node.get("status", {}).get("conditions") or ()
    return next((item for item in conditions if item["type"] == "Ready"), None)
