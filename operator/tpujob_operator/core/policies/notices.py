"""Hosts that are taken away: told to the coordinator before, and recognised afterwards.

The coordinator is told of changed budgets the same way, and of what was recognised.
"""

from __future__ import annotations

from tpujob_agent.notices import Notice
from tpujob_agent.protocol import Cause
from tpujob_operator.api import reasons
from tpujob_operator.api.base import rfc3339
from tpujob_operator.core.incidents import Incident, Rung
from tpujob_operator.core.nodes import NodeView
from tpujob_operator.core.observations import Fact, FactKind
from tpujob_operator.core.plan import Note, Tell
from tpujob_operator.core.situation import NOTHING, Outcome, Situation
from tpujob_operator.core.snapshot import Told
from tpujob_operator.core.views import PodView

#: What becomes of a node says why its host was lost, if it becomes of it this soon.
_HINDSIGHT_MS = 300_000
#: The kubelet's clock and the coordinator's may differ, and what has no memory left is slow to die.
_NEAR_MS = 10_000
#: Why Kubernetes itself ends a pod for the sake of others.
_TAKEN = ("PreemptionByScheduler", "EvictionByEvictionAPI")


def tell_coordinator(situation: Situation) -> Outcome:
    """Let the coordinator know which hosts leave or were taken, and what it may spend."""
    snapshot, epoch = situation.snapshot, situation.history.cursor.epoch
    if not epoch or snapshot.silent_since_ms:
        return NOTHING
    if situation.jobset is None or not situation.jobset.has_agents:
        return NOTHING
    if not snapshot.is_key_known:
        return NOTHING
    nodes = {pod.node for pod in snapshot.workers if not pod.is_lost} & snapshot.nodes.keys()
    notices = tuple(
        notice for name in sorted(nodes) if (notice := snapshot.nodes[name].notice) is not None
    )
    known = snapshot.told
    if known.epoch != epoch:  # it was started anew, as the attempt was made
        known = Told(epoch, budgets=situation.jobset.budgets)
    taken_away = situation.history.incidents.taken_away
    told = Told(epoch, notices, situation.job.spec.recovery.budgets.to_json(), taken_away)
    if told == known:
        return NOTHING
    notes = tuple(_note(notice) for notice in notices if notice not in snapshot.told.notices)
    if told.budgets not in (known.budgets, snapshot.told.budgets):
        notes += (Note(reasons.SPEC_CHANGED, "Changed: spec.recovery.budgets, from now on."),)
    return Outcome(actions=(Tell(snapshot.ref, told, situation.jobset.key_id, on_success=notes),))


def _note(notice: Notice) -> Note:
    when = f" at {rfc3339(notice.at_ms)}" if notice.at_ms else ""
    message = f"Node {notice.node}: {notice.reason}{when}. Everybody saves before it goes."
    return Note(reasons.HOST_LEAVING, message, "Warning")


def explain_lost_hosts(situation: Situation) -> Outcome:
    """Find out more about losses that came without a word: from what became of node and pod."""
    pods = {pod.name: pod for pod in situation.snapshot.pods}
    facts = [
        _explained(situation, incident, cause, words)
        for incident in situation.history.incidents.newest
        if _is_in_doubt(incident, situation.now_ms)
        for cause, words in [_cause_of(incident, situation, pods.get(incident.pod))]
        if words and words not in incident.message
    ]
    return Outcome(facts=tuple(facts)) if facts else NOTHING


def _is_in_doubt(incident: Incident, now_ms: int) -> bool:
    return incident.cause is Cause.NODE and now_ms - incident.at_ms <= _HINDSIGHT_MS


def _cause_of(incident: Incident, situation: Situation, pod: PodView | None) -> tuple[Cause, str]:
    if pod is not None and abs(pod.out_of_memory_ms - incident.at_ms) <= _NEAR_MS:
        return Cause.NODE, "out of memory: the kernel has killed its container (OOMKilled)"
    if incident.rung is Rung.CONTAINER:
        return Cause.NODE, ""
    node = situation.snapshot.nodes.get(incident.node)
    if node is not None and node.notice and node.notice.covers(incident.at_ms):
        return node.notice.cause, node.notice.reason
    if node is not None and _was_taken(node, incident):
        return Cause.PREEMPTION, "its spot node has been taken away"
    if pod is not None and pod.disruption in _TAKEN:
        return Cause.PREEMPTION, pod.failure
    return Cause.NODE, ""


def _was_taken(node: NodeView, incident: Incident) -> bool:
    """Whether a spot node is gone, or another one has its name."""
    return node.is_spot and (node.is_gone or node.created_ms > incident.at_ms)


def _explained(situation: Situation, incident: Incident, cause: Cause, words: str) -> Fact:
    data = {"atMs": incident.at_ms, "pod": incident.pod, "cause": cause.value, "message": words}
    return Fact(situation.now_ms, FactKind.LOSS_EXPLAINED, data)
