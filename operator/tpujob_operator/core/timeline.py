"""What a coordinator answers, checked: the program of a job can make it say anything.

An event that is not as the contract in ``tpujob_agent.events`` says is replaced by what is wrong
with it, so that one event costs neither the rest of the timeline nor the job's next decision.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard

from tpujob_agent.events import Event, EventKind, ProtocolError

#: JSON numbers up to here are exact everywhere, and sums of them fit into 64 bits for long.
MOST = 2**53 - 1
#: Clocks of nodes may be ahead of ours by so much.
_AHEAD_MS = 86_400_000
MOST_NUMBER = 1e30
_NAME, _WORD, _MESSAGE = 253, 64, 8_192
_MOST_SLICES = 100_000
_SHOWN = 40

#: From a value, and the latest time that is taken for one, to the value as it is kept.
#: Raises ValueError if it is not of its kind.
Check = Callable[[Any, int], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Malformed:
    """An event that is left out, and why."""

    seq: int
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class TimelineBatch:
    """A stretch of a coordinator's timeline, complete up to ``now_ms`` of its clock."""

    epoch: str
    events: tuple[Event | Malformed, ...]
    now_ms: int

    @property
    def known(self) -> tuple[Event, ...]:
        """Its events that are well-formed."""
        return tuple(event for event in self.events if isinstance(event, Event))

    def placed(self, nodes: Mapping[str, str]) -> TimelineBatch:
        """The batch with nodes as Kubernetes knows them, by pod; what a job says is not believed.

        A pod that is not in ``nodes`` has no node.
        """
        return dataclasses.replace(
            self, events=tuple(_placed(event, nodes) for event in self.events)
        )


def batch_of(answer: Mapping[str, Any], after: int, now_ms: int) -> TimelineBatch:
    """The batch that a coordinator answered, asked for the events after the one numbered ``after``.

    Raises:
        ProtocolError: the answer is no timeline.
    """
    latest_ms = now_ms + _AHEAD_MS
    try:
        epoch, items = _text(_WORD)(answer["epoch"], latest_ms), list(answer["events"])
        known_ms = min(_whole(answer["nowMs"]), latest_ms)
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"not a timeline: {error!r}") from error
    return TimelineBatch(epoch, tuple(_events(items, after, latest_ms)), known_ms)


def _events(items: Iterable[Any], after: int, latest_ms: int) -> Iterable[Event | Malformed]:
    for item in items:
        seq = item.get("seq") if isinstance(item, dict) else None
        # Events are numbered without gaps, so that one without a number has one all the same.
        after = seq if _is_whole(seq) else after + 1
        try:
            yield _event(item, after, latest_ms)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            yield Malformed(after, _shown(error))


def _event(item: Mapping[str, Any], seq: int, latest_ms: int) -> Event:
    kind = EventKind(item["kind"])
    at_ms = _time(item["atMs"], latest_ms)
    if not isinstance(item["data"], dict):
        raise TypeError(f"the data of {kind.value} are no object")
    data = dict(_checked(kind, item["data"], latest_ms))
    if data.get("lastStep", 0) < data.get("firstStep", 0):
        raise ValueError(f"{kind.value}.lastStep comes before its firstStep")
    return Event(seq, at_ms, kind, data)


def _checked(kind: EventKind, data: Mapping[str, Any], latest_ms: int) -> Iterable[tuple[str, Any]]:
    """The fields that this operator knows, each with a value of its kind."""
    required, optional = _FIELDS.get(kind, ({}, {}))
    for name, check in {**optional, **required}.items():
        value = data.get(name)
        if value is None and name not in required:
            continue
        try:
            yield name, check(value, latest_ms)
        except ValueError as error:
            raise ValueError(f"{kind.value}.{name} {error}") from error


def _placed(event: Event | Malformed, nodes: Mapping[str, str]) -> Event | Malformed:
    if isinstance(event, Malformed) or not event.data.get("node"):
        return event
    node = nodes.get(event.data.get("pod", ""), "")
    return dataclasses.replace(event, data={**event.data, "node": node})


def _shown(error: Exception) -> str:
    text = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
    return text[:200]


# ---- kinds of values


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MOST


def _whole(value: Any, _latest_ms: int = 0) -> int:
    if not _is_whole(value):
        raise ValueError(f"is no whole number of up to 53 bits: {_excerpt(value)}")
    return int(value)


def _time(value: Any, latest_ms: int) -> int:
    at_ms = _whole(value)
    if not 0 <= at_ms <= latest_ms:
        raise ValueError(f"is no time of up to a day ahead of now: {at_ms} ms")
    return at_ms


def _number(value: Any, _latest_ms: int = 0) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) < MOST_NUMBER:  # NaN is not below anything
        raise ValueError(f"is no number that can be reckoned with: {_excerpt(value)}")
    return float(value)


def _loss(value: Any, _latest_ms: int) -> float | None:
    """A loss; one that is no number is not told."""
    return None if isinstance(value, float) and not math.isfinite(value) else _number(value)


def _text(limit: int) -> Check:
    def check(value: Any, _latest_ms: int) -> str:
        if not isinstance(value, str):
            raise ValueError(f"is no text: {_excerpt(value)}")  # noqa: TRY004 - as for all kinds
        return value[:limit]

    return check


def _flag(value: Any, _latest_ms: int) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"is neither true nor false: {_excerpt(value)}")  # noqa: TRY004 - as above
    return value


def _indices(value: Any, _latest_ms: int) -> list[int]:
    if not isinstance(value, list) or len(value) > _MOST_SLICES:
        raise ValueError(f"is no list of slices: {_excerpt(value)}")
    return [_whole(item) for item in value]


def _excerpt(value: Any) -> str:
    if isinstance(value, str | list | dict):
        return f"{type(value).__name__} of length {len(value)}"
    if isinstance(value, int) and abs(value) > MOST:
        return "a larger one"  # the digits of which take long
    return repr(value)[:_SHOWN]


_Fields = Mapping[str, Check]
_PLACE: _Fields = {
    "slice": _whole, "host": _whole, "node": _text(_NAME), "pod": _text(_NAME),
}  # fmt: skip
#: By kind: the fields without which an event means nothing, and those that may be missing.
_FIELDS: Mapping[EventKind, tuple[_Fields, _Fields]] = {
    EventKind.MEMBER_JOINED: ({"slice": _whole, "host": _whole}, _PLACE),
    EventKind.GENERATION_STARTED: (
        {"generation": _whole, "hosts": _whole},
        {"slices": _indices, "wantedSlices": _whole},
    ),
    EventKind.PHASE: ({"generation": _whole, "phase": _text(_WORD)}, {}),
    EventKind.RESTORED: ({"generation": _whole, "step": _whole}, {}),
    EventKind.PROGRESS: (
        {"generation": _whole, "firstStep": _whole, "lastStep": _whole, "endedAtMs": _time},
        {"loss": _loss, "inputWaitMs": _whole, "saveBlockedMs": _whole, "tokens": _whole,
         "flopsPerToken": _whole},
    ),
    EventKind.COMMITTED: (
        {"step": _whole}, {"committedAtMs": _time, "blockedMs": _whole, "lagMs": _whole}
    ),
    EventKind.INTERVAL: ({"intervalMs": _whole, "predictedRatio": _number}, {}),
    EventKind.LOSS: (
        {"cause": _text(_WORD), "onsetAtMs": _time},
        {**_PLACE, "detectedAtMs": _time, "step": _whole, "message": _text(_MESSAGE),
         "exitCode": _whole, "signal": _whole, "isGivenUp": _flag},
    ),
    EventKind.GENERATION_LEFT: ({"leftAtMs": _time}, {}),
    EventKind.BACKOFF: ({"untilAtMs": _time}, {}),
    EventKind.FINDING: (
        {**_PLACE, "finding": _text(_WORD), "isOpen": _flag, "signal": _text(_WORD),
         "ratio": _number, "message": _text(_MESSAGE)},
        {},
    ),
    EventKind.GAVE_UP: ({"cause": _text(_WORD), "message": _text(_MESSAGE)}, {}),
}  # fmt: skip
