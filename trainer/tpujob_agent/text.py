"""Enumerations of strings (``enum.StrEnum`` is newer than the oldest Python of an image)."""

from __future__ import annotations

import enum


class Text(str, enum.Enum):
    """A member is its value, also when formatted."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, format_spec: str) -> str:
        return format(str(self.value), format_spec)
