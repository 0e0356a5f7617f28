"""The members that are present, by place and by connection; who may join; who is overdue."""

from __future__ import annotations

import collections
from collections.abc import Iterator

from tpujob_agent.protocol import OLDEST_PROTOCOL, PROTOCOL_VERSION, CoordinatorConfig, Hello
from tpujob_agent.wire import member_timeout_s
from tpujob_coordinator import membership
from tpujob_coordinator.membership import Member, Place, wanted_hosts

#: A broken stream may be a blip of the network: its agent reconnects within a second.
BROKEN_STREAM_MS = 2_000
#: A gap between two ticks above this means that this process itself was held up.
HELD_UP_MS = 1_500
_SUPERSEDED_KEPT = 1000
#: New agents of one place in a minute: a container that ends at once is restarted less often.
HELLOS_A_MINUTE = 30
_MINUTE_MS = 60_000


class Roster:
    """Members of one job. Times in milliseconds on the coordinator's clock."""

    def __init__(self, config: CoordinatorConfig, now_ms: int) -> None:
        self._ticked_at_ms = now_ms
        self.members: dict[Place, Member] = {}
        self._config = config
        self._timeout_ms = int(member_timeout_s(wanted_hosts(config)) * 1000)
        self._by_connection: dict[int, Place] = {}
        self._superseded: dict[str, None] = {}  # incarnations, oldest first
        self._joined_at_ms: dict[Place, collections.deque[int]] = {}

    def refusal(self, hello: Hello, now_ms: int) -> str:
        """Why this agent may not join; empty when it may."""
        if not OLDEST_PROTOCOL <= hello.protocol <= PROTOCOL_VERSION:
            speaks = f"{OLDEST_PROTOCOL} to {PROTOCOL_VERSION}"
            return f"protocol {hello.protocol}, this coordinator speaks {speaks}"
        if hello.attempt not in (0, self._config.attempt):
            return f"attempt {hello.attempt}, this is the coordinator of {self._config.attempt}"
        place = Place(hello.slice, hello.host)
        if not membership.is_valid_place(self._config, place):
            return f"the job has no slice {place.slice} host {place.host}"
        return self._refusal_of_place(place, hello.incarnation, now_ms)

    def _refusal_of_place(self, place: Place, incarnation: str, now_ms: int) -> str:
        if incarnation in self._superseded:
            return "another agent has taken this place"
        if self._is_too_soon(place, incarnation, now_ms):
            return f"{HELLOS_A_MINUTE} new agents have taken this place within a minute"
        return ""

    def _is_too_soon(self, place: Place, incarnation: str, now_ms: int) -> bool:
        known, joined = self.members.get(place), self._joined_at_ms.get(place)
        is_new = known is None or known.hello.incarnation != incarnation
        if not is_new or joined is None or len(joined) < HELLOS_A_MINUTE:
            return False
        return now_ms < joined[0] + _MINUTE_MS

    def of(self, connection: int) -> Member | None:
        """The member that speaks on this connection now."""
        place = self._by_connection.get(connection)
        member = self.members.get(place) if place else None
        return member if member and member.connection == connection else None

    def join(self, member: Member, now_ms: int) -> None:
        """Take a member in."""
        self.members[member.place] = member
        joined = self._joined_at_ms.setdefault(
            member.place, collections.deque(maxlen=HELLOS_A_MINUTE)
        )
        joined.append(now_ms)
        if member.connection is not None:
            self._by_connection[member.connection] = member.place

    def rebind(self, member: Member, connection: int, now_ms: int) -> int | None:
        """A member speaks on a new connection; returns the old one, if still open."""
        old = self._unbind(member)
        member.connection, member.last_seen_ms, member.is_unsure = connection, now_ms, True
        self._by_connection[connection] = member.place
        return old

    def remove(self, member: Member) -> int | None:
        """Strike a member off; returns its connection, if still open."""
        del self.members[member.place]
        return self._unbind(member)

    def supersede(self, member: Member) -> None:
        """Never let this incarnation in again: a newer one has its place."""
        self._superseded[member.hello.incarnation] = None
        while len(self._superseded) > _SUPERSEDED_KEPT:
            del self._superseded[next(iter(self._superseded))]

    def broken(self, connection: int, now_ms: int) -> None:
        """A connection has ended; its agent gets a moment to come back."""
        if member := self.of(connection):
            member.connection, member.broken_at_ms = None, now_ms
        self._by_connection.pop(connection, None)

    def _unbind(self, member: Member) -> int | None:
        connection, member.connection = member.connection, None
        if connection is not None:
            self._by_connection.pop(connection, None)
        return connection

    def tick(self, now_ms: int) -> None:
        """Time passes; call a few times a second."""
        gap_ms, self._ticked_at_ms = now_ms - self._ticked_at_ms, now_ms
        if gap_ms <= HELD_UP_MS:
            return
        # Nobody was heard for this long because nobody listened.
        for member in self.members.values():
            member.last_seen_ms += gap_ms
            member.broken_at_ms += gap_ms

    def overdue(self, now_ms: int) -> Iterator[tuple[Member, str, int]]:
        """Members that are gone, with the reason and when they were last known to live."""
        for member in list(self.members.values()):
            if member.connection is None:
                # An agent that said goodbye does not come back.
                if member.is_leaving or now_ms - member.broken_at_ms >= BROKEN_STREAM_MS:
                    yield member, "its agent is gone", member.broken_at_ms
            elif now_ms - member.last_seen_ms >= self._timeout_ms:
                yield member, "its agent has fallen silent", member.last_seen_ms
