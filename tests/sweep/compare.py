"""The oracles: how an outcome differs from those of lives without faults."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tests.sweep.canonical import State
from tests.sweep.play import Outcome

_ABSENT = "(absent)"


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """What lives without faults ended in; where they disagree, anything goes."""

    outcomes: Sequence[Outcome]

    def is_settled(self, state: State) -> bool:
        """Whether a state differs in nothing."""
        return not self.state_differences(state)

    def differences(self, outcome: Outcome) -> list[str]:
        """All that differs, in words."""
        return [
            *outcome.faults,
            *self.state_differences(outcome.state),
            *self._count_differences("made", outcome.made, [o.made for o in self.outcomes]),
            *self._count_differences(
                "deleted", outcome.deleted, [o.deleted for o in self.outcomes]
            ),
        ]

    def state_differences(self, state: State) -> list[str]:
        """How objects differ."""
        known = [outcome.state for outcome in self.outcomes]
        found = []
        for path in sorted({*state, *known[0]}):
            expected = {str(other.get(path, _ABSENT)) for other in known}
            if len(expected) == 1 and str(state.get(path, _ABSENT)) not in expected:
                found.append(f"{path} is {state.get(path, _ABSENT)!r}, not {expected.pop()!r}")
        return found

    def _count_differences(
        self, what: str, counts: dict[str, int], known: Sequence[dict[str, int]]
    ) -> list[str]:
        found = []
        for label in sorted({*counts, *(label for other in known for label in other)}):
            expected = sorted({other.get(label, 0) for other in known})
            if counts.get(label, 0) not in expected:
                allowed = " or ".join(map(str, expected))
                found.append(f"{label} was {what} {counts.get(label, 0)} times, not {allowed}")
        return found
