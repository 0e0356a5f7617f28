"""Messages that a core wants sent, collected until its shell takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tpujob_agent.protocol import Message
from tpujob_coordinator.membership import Member, Place
from tpujob_coordinator.stages import Send


class Outbox:
    """Effects in the order in which they arose; members without a connection get nothing."""

    def __init__(self) -> None:
        self._effects: list[Send] = []

    def send(self, member: Member, message: Message, *, is_last: bool = False) -> None:
        """A message to one member."""
        if member.connection is not None:
            self._effects.append(Send(member.connection, message, is_last=is_last))

    def tell(
        self, members: Mapping[Place, Member], places: Iterable[Place], message: Message
    ) -> None:
        """The same message to all of these that are present."""
        for place in places:
            if member := members.get(place):
                self.send(member, message)

    def close(self, connection: int | None, message: Message | None = None) -> None:
        """End a connection, after a last message."""
        if connection is not None:
            self._effects.append(Send(connection, message, is_last=True))

    def take(self) -> list[Send]:
        """All of them, once."""
        effects, self._effects = self._effects, []
        return effects
