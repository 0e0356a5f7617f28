"""What was told or written into a status by this or another version."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, TypeVar

E = TypeVar("E", bound=enum.Enum)
D = TypeVar("D")


def known_fields(cls: type, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a dataclass's fields; keys of other versions are ignored."""
    names = {field.name for field in dataclasses.fields(cls)}
    return {name: value for name, value in raw.items() if name in names}


def known_word(words: type[E], told: object, otherwise: D) -> E | D:
    """The word that was told; ``otherwise`` if only other versions know it."""
    try:
        return words(told)
    except ValueError:
        return otherwise
