"""Who has written what while who held the Lease, from the requests of each replica.

All objects share one history: a resource version says what came before what, whatever clocks say.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Iterator, Sequence

from tests.faultproxy.calls import Call, Object
from tests.faultproxy.journal import Journal
from tests.faultproxy.names import Names

_LEASES = "leases"
_WRITES = frozenset({"create", "update", "patch", "delete"})


@dataclasses.dataclass(frozen=True, slots=True)
class Sent:
    """A write that a replica has sent, other than of its Lease."""

    what: str
    is_of_job: bool  # not an event
    at_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """A write that the API server has taken."""

    sent: Sent
    version: int  # of the object after it; 0: the answer does not say


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """The Lease got a holder, another one or none."""

    holder: str
    version: int
    answered_s: float


class Record(Journal):
    """The journal of one replica's proxy, with times, versions and the holders of the Lease."""

    def __init__(self) -> None:
        super().__init__(Names())
        self.sent: list[Sent] = []
        self.done: list[Done] = []
        self.taken: list[Taken] = []
        self._open: dict[int, Sent] = {}

    def add_call(self, call: Call) -> None:
        """Take note of a request, whatever becomes of it."""
        super().add_call(call)
        if call.verb in _WRITES and call.resource != _LEASES:
            what = f"{call.verb} {call.target} {self.names.of(call.resource, call.name)}"
            sent = Sent(what, call.is_write, time.monotonic())
            self.sent.append(sent)
            self._open[id(call)] = sent

    def add_answer(self, call: Call, before: int, code: int, content: bytes) -> None:
        """Take in an answer of the API server."""
        super().add_answer(call, before, code, content)
        sent = self._open.pop(id(call), None)
        if code >= 400 or call.verb not in _WRITES:
            return
        answer = json.loads(content)
        if call.resource == _LEASES:
            self._take(answer)
        elif sent is not None:
            self.done.append(Done(sent, _version(answer)))

    def _take(self, lease: Object) -> None:
        holder = str(lease["spec"].get("holderIdentity") or "")
        if not self.taken or self.taken[-1].holder != holder:
            self.taken.append(Taken(holder, _version(lease), time.monotonic()))


@dataclasses.dataclass(frozen=True, slots=True)
class Terms:
    """Which replica held the Lease when; replicas are numbers."""

    changes: Sequence[tuple[Taken, int]]  # in the order of versions; without a holder: -1

    @classmethod
    def of(cls, records: Sequence[Record]) -> Terms:
        """All changes of the holder."""
        found = [
            (taken, number if taken.holder else -1)
            for number, record in enumerate(records)
            for taken in list(record.taken)
        ]
        return cls(sorted(found, key=lambda change: change[0].version))

    def holder_at(self, version: int) -> int:
        """Who held the Lease just before this version came to be; nobody: -1."""
        before = [number for taken, number in self.changes if taken.version < version]
        return before[-1] if before else -1

    def surely_at(self, now_s: float) -> int:
        """Who held the Lease by all that had been answered then; nobody: -1."""
        before = [number for taken, number in self.changes if taken.answered_s < now_s]
        return before[-1] if before else -1

    def next_taken_s(self, replica: int, since_s: float) -> float | None:
        """When this replica next became the leader; None: it did not."""
        times = [taken.answered_s for taken, number in self.changes if number == replica]
        return next((at_s for at_s in times if at_s >= since_s), None)


def trespasses(records: Sequence[Record]) -> list[str]:
    """Writes of replicas that did not hold the Lease: those that happened, and those tried."""
    terms = Terms.of(records)
    return [
        line
        for number, record in enumerate(records)
        for line in (*_written(record, number, terms), *_tried(record, number, terms))
    ]


def _written(record: Record, number: int, terms: Terms) -> Iterator[str]:
    for done in list(record.done):
        version, at_s = done.version, done.sent.at_s
        holder = terms.holder_at(version) if version else terms.surely_at(at_s)
        if holder != number:
            yield f"replica {number} wrote while {holder} led: {done.sent.what}"


def _tried(record: Record, number: int, terms: Terms) -> Iterator[str]:
    for sent in list(record.sent):
        if (holder := terms.surely_at(sent.at_s)) != number:
            yield f"replica {number} tried to write while {holder} led: {sent.what}"


def first_write_s(record: Record, since_s: float) -> float | None:
    """When a replica sent its first write to objects of a job after this time; None: never."""
    times = (sent.at_s for sent in list(record.sent) if sent.is_of_job)
    return next((at_s for at_s in times if at_s >= since_s), None)


def takeovers(records: Sequence[Record]) -> int:
    """How often the Lease went from one replica to another."""
    held = [number for _, number in Terms.of(records).changes if number >= 0]
    return sum(1 for before, after in itertools.pairwise(held) if before != after)


def _version(obj: Object) -> int:
    version = str((obj.get("metadata") or {}).get("resourceVersion", ""))
    return int(version) if version.isdigit() else 0
