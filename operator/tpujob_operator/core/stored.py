"""What was told or written into a status by this or another version, or by somebody else.

Every value is checked: a wrong type, once believed, would stop the job's passes much later.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tpujob_operator.core.timeline import MOST_NUMBER

#: Beyond 64 bits the API server keeps no number whole.
_MOST = 2**63 - 1
E = TypeVar("E", bound=enum.Enum)
D = TypeVar("D")
_Reader = Callable[[object], Any]


def whole(value: object) -> int:
    """A whole number; ``false`` is 0, as for a status that is compared with another one.

    Raises:
        TypeError: it is none, or too large for the API.
    """
    if not isinstance(value, int) or abs(value) > _MOST:
        raise _wrong(value, "a whole number")
    return int(value)


def number(value: object) -> float:
    """A number that times and shares of any job stay below.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, int | float) or not abs(value) < MOST_NUMBER:  # NaN is below nothing
        raise _wrong(value, "a number")
    return value


def text(value: object) -> str:
    """A text.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, str):
        raise _wrong(value, "a text")
    return value


def flag(value: object) -> bool:
    """True or false; 1 and 0 are the same.

    Raises:
        TypeError: it is neither.
    """
    if not isinstance(value, int) or value not in (0, 1):
        raise _wrong(value, "true or false")
    return bool(value)


def table(value: object) -> Mapping[str, Any]:
    """An object.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, Mapping):
        raise _wrong(value, "an object")
    return value


def items(value: object) -> list[Any]:
    """A list.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, list):
        raise _wrong(value, "a list")
    return value


def known_fields(cls: type, raw: object) -> dict[str, Any]:
    """The values of a dataclass's fields; keys of other versions are ignored.

    Raises:
        TypeError: one of them is not of its field's type. Only numbers, texts and flags are
            checked; fields of other types are the caller's.
    """
    readers = _readers(cls)
    return {name: readers[name](value) for name, value in table(raw).items() if name in readers}


def known_word(words: type[E], told: object, otherwise: D) -> E | D:
    """The word that was told; ``otherwise`` if only other versions know it.

    Raises:
        TypeError: it is no word.
    """
    try:
        return words(text(told))
    except ValueError:
        return otherwise


_PLAIN: Mapping[type, _Reader] = {int: whole, float: number, str: text, bool: flag}


@functools.cache
def _readers(cls: type) -> Mapping[str, _Reader]:
    hints = typing.get_type_hints(cls)
    return {field.name: _reader(hints[field.name]) for field in dataclasses.fields(cls)}


def _reader(hint: Any) -> _Reader:
    if isinstance(hint, types.UnionType):
        (plain,) = (part for part in hint.__args__ if part is not types.NoneType)
        return functools.partial(_or_none, _PLAIN[plain])
    return _PLAIN.get(hint, _unchecked)


def _unchecked(value: object) -> Any:
    return value


def _or_none(read: _Reader, value: object) -> Any:
    return None if value is None else read(value)


def _wrong(value: object, wanted: str) -> TypeError:
    return TypeError(f"{repr(value)[:80]} is not {wanted}")
