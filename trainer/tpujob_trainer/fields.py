"""Builds frozen dataclasses from decoded JSON and collects every problem on the way."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from typing import Any, TypeVar

T = TypeVar("T")


class ConfigError(ValueError):
    """A configuration that cannot be used; ``problems`` holds one sentence for each fault."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"the trainer's configuration has {count}:{lines}")


class Problems:
    """Faults found so far, so that a user sees all of them at once."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, path: str, fault: str, nearest: object | None) -> None:
        """Note a fault at a field; ``nearest`` is the nearest valid value, if there is one."""
        hint = "" if nearest is None else f" (nearest valid: {nearest})"
        self.found.append(f"{path or 'the configuration'}: {fault}{hint}")


def setting(
    default: T,
    *,
    key: str = "",
    at_least: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] = (),
) -> T:
    """A documented field with its bounds.

    Args:
        default: value when the key is absent; a dataclass instance makes a section.
        key: the JSON key, where it is not the field's name.
        at_least: smallest valid number.
        above: exclusive lower bound.
        choices: valid strings.
    """
    metadata = {
        "key": key,
        "at_least": at_least,
        "above": above,
        "choices": choices,
    }
    field: T = dataclasses.field(default=default, metadata=metadata)
    return field


def build(kind: type[T], raw: Any, path: str, problems: Problems) -> T:
    """An instance of a dataclass from a JSON object; faulty fields keep their default."""
    if not isinstance(raw, dict):
        problems.add(path, f"expected an object, got {_shown(raw)}", None)
        return kind()
    fields = {f.metadata["key"] or f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type] # callers pass dataclasses
    for unknown in sorted(set(raw) - set(fields)):
        near = difflib.get_close_matches(unknown, fields, n=1, cutoff=0.5)
        allowed = near[0] if near else f"one of {', '.join(sorted(fields))}"
        problems.add(_join(path, unknown), "no such field", allowed)
    hints = typing.get_type_hints(kind)
    values = {
        field.name: _value(field, hints[field.name], raw[key], _join(path, key), problems)
        for key, field in fields.items()
        if key in raw
    }
    return kind(**values)


def to_json(config: Any) -> dict[str, Any]:
    """Inverse of ``build``: camelCase keys, every field present."""
    return {
        field.metadata["key"] or field.name: _plain(getattr(config, field.name))
        for field in dataclasses.fields(config)
    }


def _plain(value: Any) -> Any:
    return to_json(value) if dataclasses.is_dataclass(value) else value


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else str(key)


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"[:80]


def _value(
    field: dataclasses.Field[Any], kind: Any, raw: Any, path: str, problems: Problems
) -> Any:
    if dataclasses.is_dataclass(kind):
        return build(typing.cast("type[Any]", kind), raw, path, problems)
    fault = _fault_of_type(kind, raw)
    if fault:
        problems.add(path, fault, _converted(kind, raw))
        return field.default
    value = float(raw) if kind is float else raw
    fault, nearest = _fault_of_range(field.metadata, value)
    if fault:
        problems.add(path, fault, nearest)
        return field.default
    return value


def _fault_of_type(kind: type, raw: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    accepted = (int, float) if kind is float else (kind,)
    # JSON's true is an int to Python, and never meant as one.
    if isinstance(raw, accepted) and isinstance(raw, bool) is (kind is bool):
        return ""
    return f"expected {names[kind]}, got {_shown(raw)}"


def _converted(kind: type, raw: Any) -> object | None:
    """What the user probably meant, e.g. 16 for "16" or 16.0."""
    if kind is bool:
        return {"true": "true", "1": "true", "false": "false", "0": "false"}.get(str(raw).lower())
    if isinstance(raw, bool) or raw is None or kind is str:
        return None
    try:
        return int(float(raw)) if kind is int else float(raw)
    except (TypeError, ValueError, OverflowError):
        return None


def _fault_of_range(bounds: Any, value: Any) -> tuple[str, object | None]:
    if bounds["choices"] and value not in bounds["choices"]:
        near = difflib.get_close_matches(value, bounds["choices"], n=1, cutoff=0.0)
        return f"{value!r} is none of {', '.join(bounds['choices'])}", near[0]
    if bounds["at_least"] is not None and not value >= bounds["at_least"]:
        return f"{value} is below {bounds['at_least']}", bounds["at_least"]
    if bounds["above"] is not None and not bounds["above"] < value < float("inf"):
        return f"{value} is not above {bounds['above']}", None
    return "", None
