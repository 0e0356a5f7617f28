"""What the operator keeps in memory of one job, beside the objects in the cache."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tpujob_operator.api.base import parse_rfc3339
from tpujob_operator.core.forms import FORMS
from tpujob_operator.core.history import Cursor, History, needs_decision
from tpujob_operator.core.kinds import CHILDREN, kind_of
from tpujob_operator.core.memory import Memory
from tpujob_operator.core.plan import Action, Create, Delete
from tpujob_operator.core.snapshot import Told
from tpujob_operator.core.timeline import TimelineBatch
from tpujob_operator.core.views import PodView, View

#: Pods that are gone and whose node is still known: as many as there are pods, and at least these.
_FEW_PODS = 16

#: A refusal that is not met again for so long counts no more: what was refused may be needless.
REFUSAL_KEPT_MS = 300_000


class Refusal(NamedTuple):
    """Something about a job that the API server does not take."""

    words: str
    at_ms: int
    action: Action

    def is_over(self, owner_uid: str, children: Iterable[View]) -> bool:
        """Whether it has happened after all, as a job's children show; its answer was lost."""
        match self.action:
            case Create(manifest):
                name = (kind_of(manifest), manifest["metadata"]["name"])
                own = (item for item in children if item.owner_uid == owner_uid)
                return any((item.kind, item.name) == name for item in own)
            case Delete(ref) if ref.kind in CHILDREN:
                return all(item.uid != ref.uid for item in children)
        return False


@dataclasses.dataclass(slots=True)
class JobState:
    """Memory of one incarnation of a job; all of it can be rebuilt from ``status.ledger``.

    The times beside history and memory are steady ones, which mean nothing to another process;
    see ``clock.Clock``.
    """

    uid: str
    history: History
    memory: Memory
    #: why not all of ``status.ledger`` could be read; empty once it is written anew
    unread: str = ""
    #: held by a pass: what is folded in meanwhile would be lost with its outcome
    deciding: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock, compare=False)
    #: nodes by pod as Kubernetes tells them; a coordinator only repeats what the job says
    nodes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: ``status.ledger`` as this state knows it; another one there was written by somebody else
    ledger: Mapping[str, Any] | None = None
    #: whether the job's status may have changed unseen: it is to be read before a decision
    is_in_doubt: bool = False
    #: what the API server does not take, by what it is about
    refusals: dict[str, Refusal] = dataclasses.field(default_factory=dict)
    status_written_ms: int = 0
    applied_ms: int = 0
    failures: int = 0
    told: Told = dataclasses.field(default_factory=Told)
    silent_since_ms: int = 0
    silent_why: str = ""
    is_unauthorized: bool = False  # the silent coordinator does not take the operator's token
    #: up to when the history is known to be complete, by the coordinator; 0: none was read
    known_until_ms: int = 0
    looked_ms: int = 0  # when the newest pass began
    #: how far into the timeline the history is written down
    persisted: Cursor = dataclasses.field(default_factory=Cursor)

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> JobState:
        """The state of a job as its status tells it; what cannot be read is begun anew."""
        raw = ledger_of(obj)
        history, memory, unread = fresh_history(obj), Memory(), ""
        if raw:
            try:
                newest = FORMS.read(raw)
                history = History.from_json(newest)
                memory = Memory.from_json(newest.get("operator", {}))
            except ValueError as error:
                unread = str(error)
        return cls(
            uid=obj["metadata"]["uid"],
            history=history,
            memory=memory,
            unread=unread,
            ledger=raw,
            persisted=history.cursor,
        )

    def take(self, batch: TimelineBatch) -> bool:
        """Fold in what a coordinator told; say whether it calls for a decision.

        The caller holds ``deciding``.
        """
        before = self.history
        self.silent_since_ms, self.silent_why = 0, ""
        self.known_until_ms = max(self.known_until_ms, batch.now_ms)
        if batch.events or batch.epoch != before.cursor.epoch:
            self.history = before.read(batch.placed(self.nodes))
        return needs_decision(before, self.history)

    def see(self, pods: Iterable[PodView]) -> None:
        """Remember the nodes of the job's pods, of the newest ones that are gone too."""
        there = {pod.name: pod.node for pod in pods if pod.node}
        gone = [name for name in self.nodes if name not in there]
        kept = gone[-max(_FEW_PODS, len(there)) :]
        self.nodes = {name: self.nodes[name] for name in kept} | there

    def reloaded(self, obj: Mapping[str, Any]) -> JobState:
        """The state as the job's status tells it now, with what is not in any status.

        What was read of the coordinator since is dropped: it is read again from the cursor
        that the status holds.
        """
        return dataclasses.replace(
            JobState.of(obj),
            refusals=self.refusals,
            status_written_ms=self.status_written_ms,
            applied_ms=self.applied_ms,
            failures=self.failures,
            told=self.told,
            known_until_ms=self.known_until_ms,
            nodes=self.nodes,
        )

    def see_children(self, children: Iterable[View]) -> None:
        """Take in what there is: what was refused may have happened after all."""
        self.refusals = {
            subject: refusal
            for subject, refusal in self.refusals.items()
            if not refusal.is_over(self.uid, children)
        }

    def words_of_refusals(self, steady_ms: int) -> tuple[str, ...]:
        """What is refused at present, for people."""
        return tuple(
            refusal.words
            for refusal in self.refusals.values()
            if steady_ms - refusal.at_ms < REFUSAL_KEPT_MS
        )

    def committed(self, history: History, memory: Memory) -> None:
        """A pass has carried out what it decided."""
        self.history, self.memory = history, memory


def ledger_of(obj: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """``status.ledger`` of a job; nothing: it has none yet."""
    return (obj.get("status") or {}).get("ledger")


def fresh_history(obj: Mapping[str, Any]) -> History:
    """The history of a job of which nothing is known but when it was created."""
    return History.start(parse_rfc3339(obj["metadata"]["creationTimestamp"]))
