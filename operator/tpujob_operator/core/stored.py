"""What was written into a status by this or another version."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


def known_fields(cls: type, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a dataclass's fields; keys of other versions are ignored."""
    names = {field.name for field in dataclasses.fields(cls)}
    return {name: value for name, value in raw.items() if name in names}
