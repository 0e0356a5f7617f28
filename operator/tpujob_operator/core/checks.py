"""What preflights have found out, kept in the operator's memory of a job."""

from __future__ import annotations

import dataclasses

from tpujob_agent.preflight import Answer
from tpujob_operator.core.stored import items, known_fields

#: Specs whose answers are remembered: one that is changed and changed back is not checked again.
_MOST = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One preflight."""

    digest: str  # of what it checks
    since_ms: int
    answer: str = ""  # an ``Answer``; empty: it is under way
    message: str = ""

    @property
    def lets_start(self) -> bool:
        """Whether a job may take chips: what could not be checked is not held up."""
        return self.answer in (Answer.FITS, Answer.UNABLE)


def find(checks: tuple[Check, ...], digest: str) -> Check | None:
    """The check of what has this digest, if there was one."""
    return next((check for check in checks if check.digest == digest), None)


def put(checks: tuple[Check, ...], check: Check) -> tuple[Check, ...]:
    """The checks with this one as the newest; of those that were dropped, none is under way."""
    others = [one for one in checks if one.digest != check.digest and one.answer]
    return (*others, check)[-_MOST:]


def from_json(raw: object) -> tuple[Check, ...]:
    """Inverse of ``dataclasses.asdict`` of each; answers of other versions are ignored."""
    known = ("", *Answer)
    made = (Check(**known_fields(Check, item)) for item in items(raw))
    return tuple(check for check in made if check.answer in known)
