"""Connections that have not proved themselves yet: at most so many, and cheap."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


class Lobby:
    """Turns the oldest guest of the busiest address away when a new one finds no seat.

    Agents prove themselves within milliseconds, so that a flood from a few addresses turns
    away itself.
    """

    def __init__(self, seats: int) -> None:
        self._seats = seats
        self._guests: dict[str, dict[object, Callable[[], None]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def enter(self, guest: object, address: str, turn_away: Callable[[], None]) -> None:
        """A connection has been made; ``turn_away`` ends it, and may call ``leave``."""
        if self._count >= self._seats:
            self._turn_one_away()
        self._guests.setdefault(address, {})[guest] = turn_away
        self._count += 1

    def leave(self, guest: object, address: str) -> None:
        """It has proved itself, or has ended."""
        if self._guests.get(address, {}).pop(guest, None) is None:
            return
        self._count -= 1
        if not self._guests[address]:
            del self._guests[address]

    def _turn_one_away(self) -> None:
        address = max(self._guests, key=lambda one: len(self._guests[one]))
        guest, turn_away = next(iter(self._guests[address].items()))
        self.leave(guest, address)
        turn_away()


def oldest_of_busiest(guests: Sequence[_T], address_of: Callable[[_T], str]) -> _T:
    """Of connections, oldest first, the one that a ``Lobby`` would turn away."""
    addresses = [address_of(guest) for guest in guests]
    busiest = collections.Counter(addresses).most_common(1)[0][0]
    return guests[addresses.index(busiest)]
