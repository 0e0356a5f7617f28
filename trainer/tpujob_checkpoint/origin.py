"""What a state was trained with: kept with every state, and asked before one is continued."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


def _any(_before: dict[str, Any], _step: int) -> str:
    return ""


@dataclasses.dataclass(slots=True)
class Origin:
    """What is kept with the states of a run, and which states it may continue.

    Attributes:
        now: kept with every state that is saved from now on; anything that JSON holds.
        why_not: takes what was kept with a state, and the state's step; says why a run with the
            present configuration cannot continue it and what to do, or is empty.
    """

    now: dict[str, Any] = dataclasses.field(default_factory=dict)
    why_not: Callable[[dict[str, Any], int], str] = _any
