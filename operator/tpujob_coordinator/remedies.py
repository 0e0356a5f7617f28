"""What is done about a straggler, where the job's policy is to act: seldom, and one at a time.

A restart costs everybody a start. So it needs one host at fault that is known by name, a
checkpoint since the last restart, a budget that is not spent, and a calm time before it.
"""

from __future__ import annotations

from collections.abc import Mapping

from tpujob_agent.protocol import (
    REPLACED_WITHIN_S,
    Cause,
    CoordinatorConfig,
    StragglerAction,
)
from tpujob_coordinator.budgets import Budgets
from tpujob_coordinator.ending import end_of_member
from tpujob_coordinator.health import Health
from tpujob_coordinator.membership import Member, Place
from tpujob_coordinator.messages import straggler_message
from tpujob_coordinator.verdicts import End

#: From one remedy to the next.
COOLDOWN_MS = 600_000


class Remedies:
    """Remembers what was done, over all generations."""

    def __init__(self, config: CoordinatorConfig) -> None:
        self._action = StragglerAction(config.straggler_action)
        self._not_before_ms = 0
        self._given_up: dict[str, int] = {}  # pods, and until when

    def rest(self, now_ms: int) -> None:
        """Something was done now, or may have been done by a coordinator before this one."""
        self._not_before_ms = now_ms + COOLDOWN_MS

    def due(
        self, health: Health, members: Mapping[Place, Member], budgets: Budgets, now_ms: int
    ) -> End | None:
        """The verdict that ends the generation for a straggler; None: nothing is to be done."""
        if self._action is StragglerAction.REPORT or now_ms < self._not_before_ms:
            return None
        if budgets.without_commit or not budgets.allows(Cause.STRAGGLER):
            return None
        found = health.culprit()
        member = members.get(found[0]) if found else None
        if not found or member is None:
            return None
        is_given_up = self._action is StragglerAction.REPLACE
        message = straggler_message(*found)
        return end_of_member(member, Cause.STRAGGLER, message, now_ms, is_given_up=is_given_up)

    def done(self, end: End, now_ms: int) -> None:
        """A generation has ended for this verdict."""
        self.rest(now_ms)
        if end.is_given_up:
            self._given_up[end.pod] = now_ms + REPLACED_WITHIN_S * 1000

    def usable(self, members: Mapping[Place, Member], now_ms: int) -> Mapping[Place, Member]:
        """Members of which the next world may be formed."""
        self._given_up = {pod: until for pod, until in self._given_up.items() if now_ms < until}
        if not self._given_up:
            return members
        return {
            p: member for p, member in members.items() if member.hello.pod not in self._given_up
        }
