"""Where pods go: an attempt avoids the nodes that were suspect when it began.

Pods are made from a template that never changes within an attempt. A running world is
not stopped on a suspicion: moving costs all pods, and there may be no other place. The
list counts when there is another attempt anyway, and another one is begun for its sake
only when pods find no place with the list of old: the rest of a node pool that has lost
a node is no place for a slice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tpujob_operator.api import reasons
from tpujob_operator.api.base import parse_rfc3339
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.core import suspects
from tpujob_operator.core.plan import Note
from tpujob_operator.core.policies.attempts import leave_attempt
from tpujob_operator.core.situation import NOTHING, Outcome, Situation, Verdict
from tpujob_operator.core.suspects import Suspect

#: The scheduler needs moments, and a slice's pods come one after the other.
_SETTLED_MS = 15_000
#: Beside a dead node there is no place for a slice that does not avoid it, however long it waits.
_SURE_MS = 3_000
#: What the pods wait for may be a pod that leaves the same place within its grace period, and
#: the scheduler's next look: all pods of the job are moved only if it is not.
_ROOM_MS = 60_000
#: If pods find no place for so long, nodes that are only suspect are forgiven.
_PATIENCE_MS = 300_000


def suspects_of(situation: Situation) -> tuple[Suspect, ...]:
    """Nodes that an attempt that begins now avoids."""
    memory, nodes = situation.memory, situation.snapshot.nodes
    struck = suspects.struck(
        situation.history.incidents.newest,
        {name: node.pool for name, node in nodes.items()},
        memory.forgiven_ms,
        situation.now_ms,
    )
    return suspects.merged(memory.dead_nodes, struck)


def watch_suspects(situation: Situation) -> Outcome:
    """Dead nodes are suspect until they are ready again or deleted, or their time is over."""
    memory = situation.memory
    kept = tuple(item for item in memory.dead_nodes if _is_dead(item, situation))
    ends_ms = min((item.until_ms for item in suspects_of(situation)), default=0)
    return Outcome(
        memory=dataclasses.replace(memory, dead_nodes=kept) if kept != memory.dead_nodes else None,
        requeue_after_s=max(0.001, (ends_ms - situation.now_ms) / 1000) if ends_ms else None,
    )


def _is_dead(suspect: Suspect, situation: Situation) -> bool:
    node = situation.snapshot.nodes.get(suspect.name)
    if node is None:  # of those that have a pool, all that exist are known
        return not suspect.pool and situation.now_ms < suspect.until_ms
    return not (node.is_ready or node.is_gone) and situation.now_ms < suspect.until_ms


def move_attempt(situation: Situation) -> Outcome:
    """Begin another attempt when pods find no place, and the present one is told wrong nodes."""
    jobset = situation.jobset
    if jobset is None or jobset.is_deleting or situation.is_ending or _trains(situation):
        return NOTHING
    known = suspects_of(situation)
    wanted = suspects.Avoided.of(known).nodes
    waiting_ms = _waiting_ms(situation, known)
    if waiting_ms is None or not (wanted or jobset.avoided):
        return NOTHING
    if wanted == jobset.avoided:
        return _forgive(situation, waiting_ms)
    settled_ms = _settled_ms(situation, {*wanted} - {*jobset.avoided})
    if waiting_ms < settled_ms:
        return Outcome(requeue_after_s=(settled_ms - waiting_ms) / 1000)
    avoided = f"avoids {', '.join(wanted)}" if wanted else "may use all nodes again"
    message = (
        f"Pods of attempt {situation.attempt} find no place. Attempt {situation.attempt + 1} "
        f"{avoided}; it begins when they are gone."
    )
    note = Note(reasons.NEW_ATTEMPT, message, "Warning")
    left = leave_attempt(situation, jobset, "its pods find no place", note)
    verdict = Verdict(True, reasons.NEW_ATTEMPT, message)
    return dataclasses.replace(left, verdicts={ConditionType.RESTARTING: verdict})


def _settled_ms(situation: Situation, added: set[str]) -> int:
    """For how long pods must have found no place; ``added``: nodes that would be avoided, too."""
    if not added:
        return _SETTLED_MS
    is_sure = any(item.name in added for item in situation.memory.dead_nodes)
    return _SURE_MS if is_sure else _ROOM_MS


def _trains(situation: Situation) -> bool:
    return bool(situation.history.ledger.generation) or situation.job.spec.suspend


def _waiting_ms(situation: Situation, known: Iterable[Suspect]) -> int | None:
    """For how long a worker pod has found no node since a suspect was found; None: none waits."""
    found_ms = max((item.since_ms for item in known), default=0)
    created = [
        parse_rfc3339(pod.created)
        for pod in situation.snapshot.workers
        if pod.unschedulable and not pod.is_deleting and pod.created
    ]
    return situation.now_ms - max(min(created), found_ms) if created else None


def _forgive(situation: Situation, waiting_ms: int) -> Outcome:
    """A suspicion is not worth a job that does not run at all."""
    dead = {item.name for item in situation.memory.dead_nodes}
    if {item.name for item in suspects_of(situation)} <= dead:
        return NOTHING
    if waiting_ms < _PATIENCE_MS:
        return Outcome(requeue_after_s=(_PATIENCE_MS - waiting_ms) / 1000)
    return Outcome(
        memory=dataclasses.replace(situation.memory, forgiven_ms=situation.now_ms),
        requeue_after_s=0.001,  # the next pass acts on it
    )
