"""Forms of ``status.ledger``, and the ways from each of them to the next one and back.

Fields and words come and go without another form, as other versions leave alone what they do not
know. Another form is for what they would misread. The release that brings one reads it and still
writes the one before, so that the release before it can take over again; the next one writes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

State = Mapping[str, Any]


class Step(NamedTuple):
    """The way between a form and the next one; neither changes what it is given."""

    up: Callable[[State], State]
    down: Callable[[State], State]


@dataclasses.dataclass(frozen=True, slots=True)
class Forms:
    """What a release knows of forms."""

    newest: int  # the one that ``History`` and ``Memory`` are made from
    written: int  # the newest one, or for one release the one before
    steps: Mapping[int, Step] = dataclasses.field(default_factory=dict)  # from a form to the next

    def read(self, raw: State) -> State:
        """A stored state in the newest form.

        Raises:
            ValueError: its form is not known, or it is damaged.
        """
        form = raw.get("form")
        if not isinstance(form, int) or not 1 <= form <= self.newest:
            raise ValueError(
                f"status.ledger has form {form!r}, this operator reads up to {self.newest}"
            )
        for number in range(form, self.newest):
            raw = {**self._step(self.steps[number].up, raw), "form": number + 1}
        return raw

    def write(self, raw: State) -> State:
        """A state of the newest form in the one that is stored."""
        for number in range(self.newest - 1, self.written - 1, -1):
            raw = {**self.steps[number].down(raw), "form": number}
        return raw

    @staticmethod
    def _step(step: Callable[[State], State], raw: State) -> State:
        try:
            return step(raw)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"status.ledger is damaged: {error!r}") from error


FORMS = Forms(newest=1, written=1)
