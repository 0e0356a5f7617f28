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

#: What one coordinator is to read: the agents of larger worlds report less often.
_REPORTS_A_SECOND = 2000


def _exactly(kind: type[_T]) -> Callable[[Any], _T]:
    def checked(value: Any) -> _T:
        if type(value) is not kind:  # neither true nor 1.5 is a number of anything here
            raise TypeError(f"{value!r} is no {kind.__name__}")
        return value

    return checked


def _pairs(value: Any) -> list[list[float]]:
    return [[float(step), float(loss)] for step, loss in value]


def _samples(value: Any) -> list[list[float]]:
    """A newer peer may tell more of each step."""
    samples = [[float(number) for number in sample[:SAMPLE_VALUES]] for sample in value]
    if any(len(sample) < SAMPLE_VALUES for sample in samples):
        raise ValueError(f"a sample has fewer than {SAMPLE_VALUES} values")
    return samples


def _optional(value: Any) -> int | None:
    return None if value is None else _exactly(int)(value)


#: By the type that a field is declared with.
_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "int": _exactly(int),
    "bool": _exactly(bool),
    "str": _exactly(str),
    "int | None": _optional,
    "ProcessState": ProcessState,
    "Phase": Phase,
    "list[list[float]]": _pairs,
    "list[Sample]": _samples,
}
_FIELDS = {
    name: {f.name: _CONVERTERS[str(f.type)] for f in dataclasses.fields(cls)}  # type: ignore[arg-type] # every message is a dataclass
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
    """One line of JSON, newline included."""
    body = {"type": message.TYPE}
    for name, default in _DEFAULTS[message.TYPE].items():
        value = getattr(message, name)
        if value != default:
            body[name] = value
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Inverse of ``encode``; unknown keys are ignored, so that newer peers can add some.

    Raises:
        ProtocolError: not JSON, unknown type, a missing or malformed field.
    """
    try:
        raw = json.loads(line)
        fields = _FIELDS[raw["type"]]
        values = {name: fields[name](value) for name, value in raw.items() if name in fields}
        return MESSAGES[raw["type"]](**values)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProtocolError(f"not a message: {line[:200]!r} ({error})") from error


def report_interval_s(hosts: int) -> float:
    """Time between two reports without news of one agent in a world of this size."""
    return max(REPORT_INTERVAL_S, hosts / _REPORTS_A_SECOND)


def member_timeout_s(hosts: int) -> float:
    """Silence after which a member of a world of this size is lost."""
    return max(MEMBER_TIMEOUT_S, 3 * report_interval_s(hosts))
