"""Which fault hits which host when: pure, from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from faults.answers import ANSWERS
from faults.catalogue import CATALOGUE
from faults.scene import Place

SLICES, HOSTS = 2, 2


class Hit(NamedTuple):
    """A fault that is going to be made."""

    fault: str
    place: Place
    pause_s: float  # of training before it, so that it hits any moment between two saves


def choices(*, obeys: bool) -> list[str]:
    """Faults whose answer is known; those that are orders only for a program that obeys."""
    return [name for name in ANSWERS if obeys or not CATALOGUE[name].is_obeyed]


def draw(seed: int, count: int, names: Sequence[str], pause_s: float) -> list[Hit]:
    """Any of these faults, at any host, up to ``pause_s`` after the job is calm."""
    chance = random.Random(seed)  # noqa: S311 - it shall be repeatable
    return [
        Hit(
            chance.choice(names),
            Place(chance.randrange(SLICES), chance.randrange(HOSTS)),
            chance.uniform(0, pause_s),
        )
        for _ in range(count)
    ]
