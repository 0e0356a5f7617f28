"""What the program of ``faults.training`` wrote down about its starts and saves."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """A start or a save, in the order in which they happened on the shared disk."""

    generation: int
    what: str
    step: int


def read(text: str) -> list[Line]:
    """The lines of a diary."""
    rows = [row.split() for row in text.splitlines()]
    return [Line(int(generation), what, int(step)) for generation, what, step in rows]


def resumed_at(lines: list[Line], generation: int) -> int:
    """The step that a generation went on from; a host that came late may have a newer one."""
    return min(line.step for line in lines if line[:2] == (generation, "began"))


def assert_resumes_are_right(lines: list[Line]) -> None:
    """Every start takes the newest save, and no older world saves beside a newer one."""
    newest, saved, saving = 0, 0, 0
    for line in lines:
        assert line.generation >= newest, f"{line} after generation {newest} had begun"
        newest = line.generation
        if line.what == "saving":
            saving = line.step
        elif line.what == "saved":
            saved = saving = line.step
        else:  # it may have been killed before it could write that it had saved
            assert line.step in (saved, saving), f"{line}, but step {saved} was saved"
            saved = saving = line.step
