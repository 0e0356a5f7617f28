"""The oracles: how an outcome differs from those of lives without faults."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from tests.sweep.canonical import State
from tests.sweep.play import Outcome

_ABSENT = "(absent)"
#: Of a pod that went while there was no operator nobody knows node and words; all else is known.
_INCIDENT = re.compile(r"(?P<incident>.*\.incidents\[\d+\])\.(message|node)")
_UNSEEN = re.compile(r"a pod of \S+ is gone: ")


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """What lives without faults ended in; where they disagree, anything goes."""

    outcomes: Sequence[Outcome]

    def is_settled(self, state: State) -> bool:
        """Whether a state differs in nothing."""
        return not self.state_differences(state, was_away=True)

    def differences(self, outcome: Outcome) -> list[str]:
        """All that differs, in words."""
        return [
            *outcome.faults,
            *self.state_differences(outcome.state, was_away=outcome.starts > 1),
            *self._count_differences("made", outcome.made, [o.made for o in self.outcomes]),
            *self._count_differences(
                "deleted", outcome.deleted, [o.deleted for o in self.outcomes]
            ),
        ]

    def state_differences(self, state: State, *, was_away: bool) -> list[str]:
        """How objects differ; ``was_away``: there was a time without an operator."""
        known = [outcome.state for outcome in self.outcomes]
        found = []
        for path in sorted({*state, *known[0]}):
            expected = {str(other.get(path, _ABSENT)) for other in known}
            if was_away and _is_unseen(state, path):
                continue
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


def _is_unseen(state: State, path: str) -> bool:
    found = _INCIDENT.fullmatch(path)
    message = state.get(f"{found['incident']}.message") if found else None
    return bool(message and _UNSEEN.match(str(message)))
