"""Incidents: a pure fold from losses to what each of them cost and how it was answered."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any

from tpujob_agent.protocol import BUDGET_OF_CAUSE, NOT_COUNTED, TAKEN_AWAY, Budget, Cause, EventKind
from tpujob_operator.core.observations import FactKind, Observation
from tpujob_operator.core.stored import items, known_fields, known_word, table, text, whole

#: Incidents kept; older ones are counted only.
NEWEST = 20
#: Characters of an incident's message kept in status.
MESSAGE_LIMIT = 600

#: No sign that a job gets nowhere; nor may be what only its coordinator understands.
_NO_SIGN = NOT_COUNTED | {Cause.UNKNOWN}


class Rung(enum.StrEnum):
    """Rungs of the recovery ladder: how much was replaced to recover."""

    PROCESS = "R0"
    CONTAINER = "R1"
    POD = "R2"
    ATTEMPT = "R3"
    CHANGED_ATTEMPT = "R4"
    STOP = "R5"


@dataclasses.dataclass(frozen=True, slots=True)
class Incident:
    """One loss. Times in milliseconds; -1 where not known (yet)."""

    at_ms: int
    cause: Cause
    rung: Rung
    slice: int
    worker: int
    node: str
    pod: str
    step: int
    message: str
    detected_after_ms: int
    recovered_after_ms: int = -1
    resumed_step: int = -1
    exit_code: int | None = None
    signal: int | None = None
    is_uncommitted: bool = False  # no step was newly committed since

    @property
    def is_open(self) -> bool:
        """Whether no step has been finished since."""
        return self.recovered_after_ms < 0

    @property
    def lost_steps(self) -> int:
        """Steps to do again; -1 while not known."""
        return max(0, self.step - self.resumed_step) if self.resumed_step >= 0 else -1

    @property
    def is_without_progress(self) -> bool:
        """Whether it counts as a restart without progress."""
        return self.is_uncommitted and self.cause not in _NO_SIGN

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which ``from_json`` makes an equal incident."""
        return dataclasses.asdict(self) | {"cause": self.cause.value, "rung": self.rung.value}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Incident:
        """Inverse of ``to_json``; keys of other versions are ignored."""
        cause, message = _cause(text(raw["cause"]), text(raw["message"]))
        known = {"cause": cause, "message": message, "rung": _known_rung(raw["rung"])}
        return cls(**known_fields(cls, raw) | known)


@dataclasses.dataclass(frozen=True, slots=True)
class Incidents:
    """All incidents of a job: the newest in full, every one counted."""

    newest: tuple[Incident, ...] = ()
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)  # "cause/rung" → number
    used: Mapping[Budget, int] = dataclasses.field(default_factory=dict)
    losses_without_commit: int = 0

    @property
    def restarts(self) -> int:
        """How often the job had to recover."""
        return sum(self.counts.values())

    @property
    def open(self) -> tuple[Incident, ...]:
        """Incidents from which the job has not recovered yet."""
        return tuple(incident for incident in self.newest if incident.is_open)

    @property
    def taken_away(self) -> tuple[int, ...]:
        """Onsets of the losses since the newest commit that are no sign of a lack of progress."""
        return tuple(
            one.at_ms for one in self.newest if one.is_uncommitted and one.cause in TAKEN_AWAY
        )

    @property
    def settled(self) -> Mapping[str, int]:
        """Counts of incidents whose rung is final: these never fall."""
        counts = self.counts
        for incident in self.open:
            counts = _counted(counts, incident, -1)
        return counts

    def apply(self, seen: Observation) -> Incidents:
        """The incidents after one observation."""
        if seen.kind in (EventKind.LOSS, FactKind.ATTEMPT_FAILED):
            return self._lost(seen)
        if seen.kind is FactKind.LOSS_EXPLAINED:
            return self._explained(seen.data)
        if seen.kind in _CHANGES:
            change = _CHANGES[seen.kind]
            return self._map_open(lambda incident: change(incident, seen.data))
        if seen.kind in (EventKind.PROGRESS, FactKind.PODS_RUNNING):
            return self._recovered(int(seen.data.get("endedAtMs", seen.at_ms)))
        if seen.kind is EventKind.COMMITTED:
            return self._progressed()
        return self

    def _progressed(self) -> Incidents:
        return dataclasses.replace(self._map(_committed), losses_without_commit=0)

    def _lost(self, seen: Observation) -> Incidents:
        before = self._progressed() if seen.data.get("isCalm") else self
        incident = _incident(seen)
        budget = BUDGET_OF_CAUSE.get(incident.cause)  # its coordinator minds those we do not know
        spent = {budget: before.used.get(budget, 0) + 1} if budget else {}
        return dataclasses.replace(
            before,
            newest=(*before.newest, incident)[-NEWEST:],
            used={**before.used, **spent},
            counts=_counted(before.counts, incident, 1),
            losses_without_commit=before.losses_without_commit + incident.is_without_progress,
        )

    def _explained(self, data: Mapping[str, Any]) -> Incidents:
        explained = self._map(lambda incident: _explained(incident, data))
        charged = [sum(one.is_without_progress for one in of.newest) for of in (self, explained)]
        count = self.losses_without_commit + charged[1] - charged[0]
        return dataclasses.replace(explained, losses_without_commit=max(0, count))

    def _recovered(self, ended_ms: int) -> Incidents:
        if not self.open:
            return self
        return self._map_open(
            lambda incident: dataclasses.replace(
                incident, recovered_after_ms=max(0, ended_ms - incident.at_ms)
            )
        )

    def _map_open(self, change: Callable[[Incident], Incident]) -> Incidents:
        return self._map(lambda incident: change(incident) if incident.is_open else incident)

    def _map(self, change: Callable[[Incident], Incident]) -> Incidents:
        newest, counts = [], self.counts
        for incident in self.newest:
            changed = change(incident)
            if _key(changed) != _key(incident):
                counts = _counted(_counted(counts, incident, -1), changed, 1)
            newest.append(changed)
        return dataclasses.replace(self, newest=tuple(newest), counts=counts)

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which ``from_json`` makes equal incidents."""
        return {
            "newest": [incident.to_json() for incident in self.newest],
            "counts": dict(sorted(self.counts.items())),
            "used": {budget.value: number for budget, number in sorted(self.used.items())},
            "lossesWithoutCommit": self.losses_without_commit,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Incidents:
        """Inverse of ``to_json``; budgets that only other versions know are left out."""
        counts: dict[str, int] = {}
        for name, number in table(raw.get("counts", {})).items():
            cause, _, rung = name.partition("/")
            key = _key_of(Cause(cause), _known_rung(rung))
            counts[key] = counts.get(key, 0) + whole(number)
        used = {
            known_word(Budget, name, None): whole(number)
            for name, number in table(raw.get("used", {})).items()
        }
        return cls(
            newest=tuple(Incident.from_json(item) for item in items(raw.get("newest", []))),
            counts=counts,
            used={budget: number for budget, number in used.items() if budget},
            losses_without_commit=whole(raw.get("lossesWithoutCommit", 0)),
        )


def _counted(counts: Mapping[str, int], incident: Incident, change: int) -> dict[str, int]:
    key = _key(incident)
    changed = {**counts, key: counts.get(key, 0) + change}
    return {name: number for name, number in changed.items() if number}


def _key(incident: Incident) -> str:
    return _key_of(incident.cause, incident.rung)


def _key_of(cause: Cause, rung: Rung) -> str:
    return f"{cause.value}/{rung.value}"


def _cause(word: str, message: str) -> tuple[Cause, str]:
    """The cause that was told; one that only other versions know is named in the message."""
    cause = Cause(word)
    told = message if cause.value == word else f"{word}: {message}"
    return cause, shortened(told)


def shortened(message: str, limit: int = MESSAGE_LIMIT) -> str:
    """What happened and the end of the output: of long messages the middle is left out."""
    left_out, head = "\n…\n", limit // 4
    if len(message) <= limit:
        return message
    return message[:head] + left_out + message[head + len(left_out) - limit :]


def _known_rung(word: str) -> Rung:
    return known_word(Rung, word, Rung.PROCESS)  # the least there is


def _incident(seen: Observation) -> Incident:
    data = seen.data
    onset_ms = min(int(data["onsetAtMs"]), seen.at_ms)
    cause, message = _cause(data["cause"], str(data.get("message", "")))
    return Incident(
        at_ms=onset_ms,
        cause=cause,
        rung=_rung(seen, cause),
        slice=int(data.get("slice", -1)),
        worker=int(data.get("host", -1)),
        node=str(data.get("node", "")),
        pod=str(data.get("pod", "")),
        step=int(data.get("step", 0)),
        message=message,
        detected_after_ms=max(0, int(data.get("detectedAtMs", seen.at_ms)) - onset_ms),
        exit_code=data.get("exitCode"),
        signal=data.get("signal"),
        is_uncommitted=True,
    )


def _rung(seen: Observation, cause: Cause) -> Rung:
    if seen.kind is FactKind.ATTEMPT_FAILED:
        return Rung.ATTEMPT
    # What left is gone with its pod until it is seen again.
    is_gone = cause is Cause.NODE or cause in TAKEN_AWAY or seen.data.get("isGivenUp")
    return Rung.POD if is_gone else Rung.PROCESS


def _rejoined(incident: Incident, data: Mapping[str, Any]) -> Incident:
    same_place = (int(data["slice"]), int(data["host"])) == (incident.slice, incident.worker)
    if not same_place or incident.rung not in (Rung.PROCESS, Rung.CONTAINER, Rung.POD):
        return incident
    rung = Rung.CONTAINER if data.get("pod") == incident.pod else Rung.POD
    return dataclasses.replace(incident, rung=rung)


def _explained(incident: Incident, data: Mapping[str, Any]) -> Incident:
    if (incident.at_ms, incident.pod) != (data["atMs"], data["pod"]):
        return incident
    message = shortened(f"{incident.message}: {data['message']}")
    culprit = data.get("culprit", {})
    return dataclasses.replace(incident, cause=Cause(data["cause"]), message=message, **culprit)


def _resumed(incident: Incident, data: Mapping[str, Any]) -> Incident:
    return dataclasses.replace(incident, resumed_step=int(data["step"]))


def _committed(incident: Incident) -> Incident:
    return (
        dataclasses.replace(incident, is_uncommitted=False) if incident.is_uncommitted else incident
    )


def _moved(incident: Incident, _: Mapping[str, Any]) -> Incident:
    return dataclasses.replace(incident, rung=Rung.CHANGED_ATTEMPT)


#: What becomes of incidents that are open.
_CHANGES: Mapping[EventKind | FactKind, Callable[[Incident, Mapping[str, Any]], Incident]] = {
    EventKind.MEMBER_JOINED: _rejoined,
    EventKind.RESTORED: _resumed,
    FactKind.ATTEMPT_LEFT: _moved,
}
