"""Notices: hosts that are going to leave, as the operator tells the coordinator of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tpujob_agent.protocol import TAKEN_AWAY, Cause, ProtocolError

#: Of a planned leave: what happens to the host from so long before it on belongs to it.
EARLY_MS = 600_000


@dataclasses.dataclass(frozen=True, slots=True)
class Notice:
    """A node that is going to be taken away from the job."""

    node: str
    cause: Cause
    at_ms: int  # 0: at any moment
    reason: str

    def covers(self, at_ms: int) -> bool:
        """Whether the node's loss at this time is the one that was announced."""
        return at_ms >= self.at_ms - EARLY_MS

    def to_json(self) -> dict[str, Any]:
        """The notice as it travels, see ``protocol.TELL_PATH``."""
        return {
            "node": self.node,
            "cause": self.cause.value,
            "atMs": self.at_ms,
            "reason": self.reason,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Notice:
        """Inverse of ``to_json``; a cause of a newer operator is taken for maintenance.

        Raises:
            ProtocolError: a key is missing or has no sense.
        """
        try:
            told = Cause(raw["cause"])
            cause = told if told in TAKEN_AWAY else Cause.MAINTENANCE
            return cls(str(raw["node"]), cause, int(raw["atMs"]), str(raw["reason"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"not a notice: {raw!r} ({error})") from error
