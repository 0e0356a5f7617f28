"""How a program ends that cannot go on: an exit code that the agent understands."""

from __future__ import annotations

from tpujob_agent.protocol import USER_ERROR, ExitCode
from tpujob_checkpoint.claims import SharedDirectoryError, SupersededError
from tpujob_checkpoint.distributed import World, is_peer_loss
from tpujob_checkpoint.errors import (
    CheckpointBadError,
    CheckpointUnavailableError,
    CheckpointUnusableError,
)

_CODES: dict[type[BaseException], int] = {
    CheckpointUnusableError: USER_ERROR,
    SharedDirectoryError: USER_ERROR,
    CheckpointUnavailableError: ExitCode.STORAGE_UNAVAILABLE,
    CheckpointBadError: ExitCode.CHECKPOINT_BAD,
    SupersededError: ExitCode.SUPERSEDED,
}


def exit_code(world: World, error: BaseException) -> int | None:
    """What to end with after this error; None: it says nothing about checkpoints or peers."""
    if type(error) in _CODES:
        return _CODES[type(error)]
    return ExitCode.PEER_LOST if is_peer_loss(world, error) else None
