"""What the program of ``faults.training`` wrote down about its starts and saves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

#: A world of a job: attempt and generation.
World = tuple[int, int]


class Line(NamedTuple):
    """A start or a save, in the order in which they happened on the shared disk."""

    generation: int
    what: str
    step: int
    attempt: int = 1

    @property
    def world(self) -> World:
        """The world it belongs to; later ones are greater."""
        return self.attempt, self.generation


def read(text: str) -> list[Line]:
    """The lines of a diary."""
    rows = [row.split() for row in text.splitlines()]
    return [
        Line(int(generation), what, int(step), int(attempt))
        for attempt, generation, what, step in rows
    ]


def resumed_at(lines: Iterable[Line], world: World) -> int:
    """The step that a world went on from; a host that came late may have a newer one."""
    return min(line.step for line in lines if (line.world, line.what) == (world, "began"))


def why_wrong(lines: Iterable[Line]) -> str:
    """The first start or save that must not be; empty: all are right.

    A world goes on from the newest save, or from one of its own where a host comes late;
    and no older world saves beside a newer one.
    """
    newest, begun, saved, saving = (0, 0), 0, 0, 0
    for line in lines:
        if line.world < newest:
            return f"{line} after world {newest} had begun"
        if line.what == "saving":
            saving = line.step
        elif line.what == "saved":
            saved = saving = line.step
        elif line.world == newest:
            # It reads what it goes on from before it writes that down: others may save meanwhile.
            if not begun <= line.step <= saving:
                return f"{line}, but its world began at step {begun} and has saved step {saving}"
        elif line.step in (saved, saving):  # killed before it could write that it had saved
            begun = saved = saving = line.step
        else:
            return f"{line}, but step {saved} was saved"
        newest = line.world
    return ""
