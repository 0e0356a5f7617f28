"""How messages travel: one line of JSON each, checked field by field on arrival."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, TypeVar

from tpujob_agent.protocol import (
    MEMBER_TIMEOUT_S,
    MESSAGES,
    REPORT_INTERVAL_S,
    SAMPLE_VALUES,
    Message,
    Phase,
    ProcessState,
    ProtocolError,
)

_T = TypeVar("_T")

#: Longest text of a field in characters, and of those that name something or tell much.
TEXT_CHARS = 8_192
_CHARS = {
    "pod": 253,
    "node": 253,
    "ip": 64,
    "incarnation": 64,
    "nonce": 64,
    "process_state": 8,
    "stacks": 16_384,
    "leader": 80,
}
#: Integers and the steps of losses stay below this: JSON readers take larger ones for floats.
_INTEGER_END = 1 << 53
#: A generation leaves room for those after it.
_GENERATION_END = 1 << 31
#: Most losses and most samples of one report.
_MOST_LOSSES, _MOST_SAMPLES = 512, 64

#: What one coordinator is to read: the agents of larger worlds report less often.
_REPORTS_A_SECOND = 2000


def _exactly(kind: type[_T]) -> Callable[[Any], _T]:
    def checked(value: Any) -> _T:
        if type(value) is not kind:  # neither true nor 1.5 is a number of anything here
            raise TypeError(f"{str(value)[:80]!r} is no {kind.__name__}")
        return value

    return checked


def _integer(value: Any) -> int:
    if not -_INTEGER_END < (number := _exactly(int)(value)) < _INTEGER_END:
        raise ValueError("an integer is too large")
    return number


def _generation(value: Any) -> int:
    if not 0 <= (number := _integer(value)) < _GENERATION_END:
        raise ValueError("no generation has this number")
    return number


def _text(most: int) -> Callable[[Any], str]:
    def checked(value: Any) -> str:
        text = _exactly(str)(value)
        if len(text) > most:
            raise ValueError(f"a text has {len(text)} characters, allowed are {most}")
        if not text.isascii():
            text.encode()  # raises where half of a surrogate pair is no character
        return text

    return checked


def _step(value: Any) -> float:
    if not abs(step := float(value)) < _INTEGER_END:
        raise ValueError("a step is too large")
    return step


def _pairs(value: Any) -> list[list[float]]:
    """Losses may be infinite or no number: that is news."""
    if len(value) > _MOST_LOSSES:
        raise ValueError(f"{len(value)} losses, allowed are {_MOST_LOSSES}")
    return [[_step(step), float(loss)] for step, loss in value]


def _samples(value: Any) -> list[list[float]]:
    """A newer peer may tell more of each step."""
    if len(value) > _MOST_SAMPLES:
        raise ValueError(f"{len(value)} samples, allowed are {_MOST_SAMPLES}")
    samples = [[float(number) for number in sample[:SAMPLE_VALUES]] for sample in value]
    if not all(len(sample) == SAMPLE_VALUES and _is_sample(sample) for sample in samples):
        raise ValueError(f"a sample is not a step and {SAMPLE_VALUES - 1} times")
    return samples


def _optional(value: Any) -> int | None:
    return None if value is None else _integer(value)


#: By the type that a field is declared with.
_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "int": _integer,
    "bool": _exactly(bool),
    "int | None": _optional,
    "ProcessState": ProcessState,
    "Phase": Phase,
    "list[list[float]]": _pairs,
    "list[Sample]": _samples,
}


def _converter(field: dataclasses.Field[Any]) -> Callable[[Any], Any]:
    if field.type == "str":
        return _text(_CHARS.get(field.name, TEXT_CHARS))
    if field.name == "generation":
        return _generation
    return _CONVERTERS[str(field.type)]


_FIELDS: dict[str, dict[str, Callable[[Any], Any]]] = {
    name: {f.name: _converter(f) for f in dataclasses.fields(cls)}  # type: ignore[arg-type] # every message is a dataclass
    for name, cls in MESSAGES.items()
}


#: What is left out of a line, because whoever reads it assumes it: reports are mostly defaults.
_DEFAULTS = {
    name: {
        f.name: f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        for f in dataclasses.fields(cls)  # type: ignore[arg-type] # every message is a dataclass
    }
    for name, cls in MESSAGES.items()
}


def encode(message: Message) -> bytes:
    """One line of JSON, newline included; what is too long or too large for a field is cut."""
    body = {"type": message.TYPE}
    for name, default in _DEFAULTS[message.TYPE].items():
        value = getattr(message, name)
        if value != default:
            body[name] = _cut(name, value)
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def _cut(name: str, value: Any) -> Any:
    """A trainer's text or number must not keep its agent's report from being understood."""
    if type(value) is str:
        text = value[: _CHARS.get(name, TEXT_CHARS)]
        return text if text.isascii() else text.encode(errors="replace").decode()
    if type(value) is int:
        return max(1 - _INTEGER_END, min(value, _INTEGER_END - 1))
    if name == "losses":
        return [pair for pair in value[-_MOST_LOSSES:] if abs(pair[0]) < _INTEGER_END]
    if name == "samples":
        return [sample for sample in value[-_MOST_SAMPLES:] if _is_sample(sample)]
    return value


def _is_sample(values: list[float]) -> bool:
    return all(abs(value) < _INTEGER_END for value in values)


def decode(line: bytes) -> Message:
    """Inverse of ``encode``; unknown keys are ignored, so that newer peers can add some.

    Raises:
        ProtocolError: not JSON, unknown type, a missing or malformed field, one out of bounds.
    """
    try:
        raw = json.loads(line)
        fields = _FIELDS[raw["type"]]
        values = {name: fields[name](value) for name, value in raw.items() if name in fields}
        return MESSAGES[raw["type"]](**values)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"not a message: {line[:200]!r} ({error})") from error


def report_interval_s(hosts: int) -> float:
    """Time between two reports without news of one agent in a world of this size."""
    return max(REPORT_INTERVAL_S, hosts / _REPORTS_A_SECOND)


def member_timeout_s(hosts: int) -> float:
    """Silence after which a member of a world of this size is lost."""
    return max(MEMBER_TIMEOUT_S, 3 * report_interval_s(hosts))
