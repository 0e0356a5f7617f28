"""Faults, the requests and watch events that they hit, and the rules that join the two."""

from __future__ import annotations

import dataclasses
import enum
import random
from collections.abc import Callable, Sequence

from tests.faultproxy.calls import Call
from tests.faultproxy.names import Names


@dataclasses.dataclass(frozen=True, slots=True)
class Delay:
    """The request waits, and is then served as usual."""

    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class BlackHole:
    """There is no answer, and the API server does not see the request."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """The connection ends without an answer, and the API server does not see the request."""


@dataclasses.dataclass(frozen=True, slots=True)
class Refuse:
    """The answer is an error, and the API server does not see the request."""

    code: int
    retry_after_s: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class LoseAnswer:
    """The API server does what it is asked; the answer is lost, or an error takes its place."""

    code: int = 0  # 0: the connection ends


#: Called in the proxy's event loop, so it must be quick; it may return something to wait for.
Action = Callable[[], object]


@dataclasses.dataclass(frozen=True, slots=True)
class Strike:
    """Something happens just before a request, just after it, or both."""

    before: Action | None = None
    after: Action | None = None
    is_lost: bool = False  # the API server does not see the request


Fault = Delay | BlackHole | Cut | Refuse | LoseAnswer | Strike


class EventFault(enum.Enum):
    """What may happen to a watch event."""

    DROP = "drop"  # it is left out, and the watch does not show it
    EXPIRE = "expire"  # the watch ends before it, and the next one is told 410
    CLOSE = "close"  # the watch ends before it, and can be continued


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """Requests that a rule is about; an empty field fits any."""

    verb: str = ""
    resource: str = ""
    name: str = ""  # as Names gives it
    subresource: str | None = None
    is_write: bool | None = None

    def fits(self, call: Call, names: Names) -> bool:
        """Whether a request is one of them."""
        return (
            self.verb in ("", call.verb)
            and self.resource in ("", call.resource)
            and self.name in ("", names.of(call.resource, call.name))
            and self.subresource in (None, call.subresource)
            and self.is_write in (None, call.is_write)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class EventMatch:
    """Watch events that a rule is about; an empty field fits any."""

    type: str = ""  # ADDED, MODIFIED or DELETED
    resource: str = ""
    name: str = ""  # as Names gives it

    def fits(self, kind: str, resource: str, name: str) -> bool:
        """Whether an event of such an object is one of them."""
        return (
            self.type in ("", kind) and self.resource in ("", resource) and self.name in ("", name)
        )


class Turn:
    """Counts what fits a rule: it applies from the ``nth`` on, so many ``times``."""

    def __init__(self, nth: int, times: int | None) -> None:
        self._before = nth - 1
        self._left = times
        self.hits = 0

    def take(self) -> bool:
        """Whether the rule applies to what has just come."""
        if self._before > 0:
            self._before -= 1
            return False
        if self._left == 0:
            return False
        if self._left is not None:
            self._left -= 1
        self.hits += 1
        return True


class Rule:
    """A fault for the n-th of the requests that match, and for so many after it."""

    def __init__(self, match: Match, fault: Fault, *, nth: int = 1, times: int | None = 1) -> None:
        self._match = match
        self._fault = fault
        self._turn = Turn(nth, times)

    @property
    def hits(self) -> int:
        """How often it has applied."""
        return self._turn.hits

    def judge(self, call: Call, names: Names) -> Fault | None:
        """The fault for a request; nothing: the rule is not about it."""
        if self._match.fits(call, names) and self._turn.take():
            return self._fault
        return None


class EventRule:
    """A fault for the n-th of the watch events that match."""

    def __init__(self, match: EventMatch, fault: EventFault, *, nth: int = 1) -> None:
        self._match = match
        self._fault = fault
        self._turn = Turn(nth, 1)

    @property
    def hits(self) -> int:
        """How often it has applied."""
        return self._turn.hits

    def judge(self, kind: str, resource: str, name: str) -> EventFault | None:
        """The fault for an event; nothing: the rule is not about it."""
        if self._match.fits(kind, resource, name) and self._turn.take():
            return self._fault
        return None


class RandomRule:
    """One of several faults for any request that matches, with a probability."""

    def __init__(
        self, seed: int, probability: float, faults: Sequence[Fault], match: Match | None = None
    ) -> None:
        self._random = random.Random(seed)
        self._probability = probability
        self._faults = tuple(faults)
        self._match = match or Match()
        self.hits = 0

    def judge(self, call: Call, names: Names) -> Fault | None:
        """The fault for a request; nothing: it is served as usual."""
        if not self._match.fits(call, names) or self._random.random() >= self._probability:
            return None
        self.hits += 1
        return self._random.choice(self._faults)
