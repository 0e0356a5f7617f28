"""What the operator keeps in memory of one job, beside the objects in the cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tpujob_operator.api.base import parse_rfc3339
from tpujob_operator.core.history import Cursor, History
from tpujob_operator.core.memory import Memory
from tpujob_operator.core.snapshot import Reading, Told


@dataclasses.dataclass(slots=True)
class JobState:
    """Memory of one incarnation of a job; all of it can be rebuilt from ``status.ledger``."""

    uid: str
    history: History
    memory: Memory
    #: why not all of ``status.ledger`` could be read; empty once it is written anew
    unread: str = ""
    readings: list[Reading] = dataclasses.field(default_factory=list)
    refusals: tuple[str, ...] = ()
    status_written_ms: int = 0
    applied_ms: int = 0
    failures: int = 0
    told: Told = dataclasses.field(default_factory=Told)
    silent_since_ms: int = 0
    #: up to when the history is known to be complete; 0: no coordinator was read
    known_until_ms: int = 0
    #: how far the timeline has been read, and how far that is written down
    read: Cursor = dataclasses.field(default_factory=Cursor)
    persisted: Cursor = dataclasses.field(default_factory=Cursor)

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> JobState:
        """The state of a job as its status tells it; what cannot be read is begun anew."""
        raw = (obj.get("status") or {}).get("ledger")
        history, memory, unread = fresh_history(obj), Memory(), ""
        if raw:
            try:
                history = History.from_json(raw)
                memory = Memory.from_json(raw.get("operator", {}))
            except ValueError as error:
                unread = str(error)
        return cls(
            uid=obj["metadata"]["uid"],
            history=history,
            memory=memory,
            unread=unread,
            read=history.cursor,
            persisted=history.cursor,
        )

    def take(self, reading: Reading) -> bool:
        """Take in what a coordinator told; say whether it calls for a decision."""
        self.silent_since_ms = 0
        self.known_until_ms = max(self.known_until_ms, reading.now_ms)
        if not reading.events:
            if reading.epoch != self.read.epoch:
                self.read = Cursor(reading.epoch, 0)
            return False
        self.read = Cursor(reading.epoch, reading.events[-1].seq)
        self.readings.append(reading)
        return True

    def committed(self, history: History, memory: Memory, taken: int) -> None:
        """A pass has folded the first ``taken`` readings into the history."""
        self.history, self.memory = history, memory
        del self.readings[:taken]


def fresh_history(obj: Mapping[str, Any]) -> History:
    """The history of a job of which nothing is known but when it was created."""
    return History.start(parse_rfc3339(obj["metadata"]["creationTimestamp"]))
