"""Pods that wait for a kubelet that is gone: they are deleted by force, after a proof.

A pod that is being deleted stays until its kubelet says that its containers have ended,
with a dead node for ever. It keeps its slice's place (JobSet puts a slice where pods of
the same Job are) and holds up the next attempt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from tpujob_agent.protocol import TAKEN_AWAY, Cause
from tpujob_operator.api import reasons
from tpujob_operator.core import suspects
from tpujob_operator.core.incidents import Incidents
from tpujob_operator.core.memory import Memory
from tpujob_operator.core.nodes import NodeView, Pulse
from tpujob_operator.core.plan import Delete, Note
from tpujob_operator.core.situation import Outcome, Situation
from tpujob_operator.core.views import PodView

#: Seconds between two looks at a node of which a pod does not go.
_LOOK_S = 2.0
#: Evicted because its node is not ready: nobody is there to end it within the grace period.
_EVICTED = "DeletionByTaintManager"
#: Causes of losses after which the node may be gone.
_LOST = TAKEN_AWAY | {Cause.NODE}


def suspicious(nodes: Mapping[str, NodeView], incidents: Incidents) -> frozenset[str]:
    """Nodes that may be gone: they are not Ready, or a host has just been lost on them.

    They are looked at before their pods are evicted: a proof takes time, and so does Kubernetes.
    """
    unready = {name for name, node in nodes.items() if not node.is_ready}
    lost = {incident.node for incident in incidents.open if incident.cause in _LOST}
    return frozenset((unready | lost) - {""})


def nodes_in_doubt(pods: Iterable[PodView], suspicious: Collection[str], now_ms: int) -> set[str]:
    """Nodes to look at: those of the job that are suspicious, or that a pod does not leave."""
    return {pod.node for pod in pods if _is_in_doubt(pod, suspicious, now_ms)}


def clear_dead_pods(situation: Situation) -> Outcome:
    """Delete by force what is left of the job on nodes that are gone for certain."""
    snapshot = situation.snapshot
    deletions = deletions_of_dead(
        snapshot.pods, snapshot.pulses, snapshot.cluster.node_loss_ms, situation.now_ms
    )
    return Outcome(
        actions=deletions,
        memory=_noted(situation, {gone.ref.uid for gone in deletions}),
        requeue_after_s=next_look_s(
            snapshot.pods, suspicious(snapshot.nodes, situation.history.incidents), situation.now_ms
        ),
    )


def deletions_of_dead(
    pods: Iterable[PodView], pulses: Mapping[str, Pulse], limit_ms: int, now_ms: int
) -> tuple[Delete, ...]:
    """What is to be deleted by force, each with its proof."""
    return tuple(
        _deletion(pod, f"node {pod.node} {proof}, so it is removed by force")
        for pod in pods
        if _is_overdue(pod, now_ms)
        if (proof := _proof(pod, pulses.get(pod.node), limit_ms, now_ms))
    )


def _deletion(pod: PodView, why: str) -> Delete:
    note = Note(reasons.NODE_GONE, f"Pod {pod.name}: {why}.", "Warning")
    return Delete(pod.ref, why, by_force=True, needs_status=False, on_success=(note,))


def _noted(situation: Situation, uids: Collection[str]) -> Memory | None:
    """Remember the nodes of these pods, so that the job's next attempt avoids them.

    A deleted node is no bad place: its pool gets another one for it.
    """
    snapshot, now_ms = situation.snapshot, situation.now_ms
    dead = [
        suspects.dead(
            pod.node,
            snapshot.nodes[pod.node].pool if pod.node in snapshot.nodes else "",
            snapshot.pulses[pod.node].proof_of_death(snapshot.cluster.node_loss_ms, now_ms),
            now_ms,
        )
        for pod in snapshot.pods
        if pod.uid in uids and pod.is_worker and snapshot.pulses[pod.node].exists
    ]
    if not dead:
        return None
    known = situation.memory.dead_nodes
    return dataclasses.replace(situation.memory, dead_nodes=suspects.merged(known, dead))


def _proof(pod: PodView, pulse: Pulse | None, limit_ms: int, now_ms: int) -> str:
    if pulse is None:
        return ""
    if not pulse.exists and now_ms < pod.grace_ends_ms:
        return ""  # a node that is being removed may still run it to its end
    return pulse.proof_of_death(limit_ms, now_ms)


def next_look_s(pods: Iterable[PodView], suspicious: Collection[str], now_ms: int) -> float | None:
    """Seconds until some pod's node needs to be looked at (again); None: no pod is in doubt."""
    waits = (_wait_s(pod, suspicious, now_ms) for pod in pods)
    return min((wait for wait in waits if wait is not None), default=None)


def _wait_s(pod: PodView, suspicious: Collection[str], now_ms: int) -> float | None:
    if _is_in_doubt(pod, suspicious, now_ms):
        return _LOOK_S
    if not _is_leaving(pod):
        return None
    return (pod.grace_ends_ms - now_ms) / 1000


def _is_in_doubt(pod: PodView, suspicious: Collection[str], now_ms: int) -> bool:
    is_at_stake = pod.node in suspicious and pod.is_alive
    return is_at_stake or _is_overdue(pod, now_ms)


def _is_overdue(pod: PodView, now_ms: int) -> bool:
    if not _is_leaving(pod):
        return False
    return now_ms >= pod.grace_ends_ms or pod.disruption == _EVICTED


def _is_leaving(pod: PodView) -> bool:
    """Whether a kubelet has to say that the pod has ended."""
    return bool(pod.node and pod.deletion_ends_ms and not pod.is_doomed)
