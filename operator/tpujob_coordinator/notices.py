"""Hosts that are going to leave: everybody saves a little before, and trains on.

A notice may come long before the host is told to go, and the telling (SIGTERM) may leave
too little time for a save, or not come at all. When it comes in time everybody saves once
more, and leaves (see ``farewell``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tpujob_agent.notices import Notice
from tpujob_coordinator.membership import Member, Place, World

#: A planned leave is met with a save so long before, and twice the time that saves take.
LEAD_MS = 60_000


class Notices:
    """What the operator has told, and which of it has been answered by a save."""

    def __init__(self) -> None:
        self._by_node: dict[str, Notice] = {}
        self._answered: dict[Notice, int] = {}  # in which generation

    def replace(self, notices: Iterable[Notice], members: Mapping[Place, Member]) -> None:
        """All notices there are; those of before that are not among them are void."""
        self._by_node = {notice.node: notice for notice in notices}
        told = set(self._by_node.values())
        self._answered = {notice: n for notice, n in self._answered.items() if notice in told}
        for member in members.values():
            self.mark(member)

    def mark(self, member: Member) -> None:
        """Tell a member what is known of its node."""
        member.notice = self._by_node.get(member.hello.node)

    def due(
        self, world: World, members: Mapping[Place, Member], save_ms: int, now_ms: int
    ) -> list[Notice]:
        """Notices about the world's nodes that it has to save for now, and has not yet.

        ``save_ms``: time from the beginning of a save until it is durable.
        """
        nodes = {members[place].hello.node for place in world.places if place in members}
        return [
            notice
            for node, notice in self._by_node.items()
            if node in nodes
            and self._answered.get(notice) != world.generation
            and now_ms >= notice.at_ms - LEAD_MS - 2 * save_ms
        ]

    def answer(self, notices: Iterable[Notice], generation: int) -> None:
        """Everybody has been told to save for them."""
        self._answered |= dict.fromkeys(notices, generation)
