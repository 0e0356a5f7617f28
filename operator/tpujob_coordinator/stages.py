"""What a core tells its shell: the stage it is in, and what to send."""

from __future__ import annotations

import dataclasses
import enum

from tpujob_agent.protocol import Message


class Stage(enum.StrEnum):
    """What the coordinator is doing."""

    ADOPTING = "adopting"  # just started: a world may be running already
    FORMING = "forming"
    RUNNING = "running"
    ENDING = "ending"
    FINISHED = "finished"
    GAVE_UP = "gaveUp"


@dataclasses.dataclass(frozen=True, slots=True)
class Send:
    """Effect: a message to one connection; ``is_last`` closes it afterwards."""

    connection: int
    message: Message | None
    is_last: bool = False
