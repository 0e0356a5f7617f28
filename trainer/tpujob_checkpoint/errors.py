"""Why a run cannot go on with its checkpoints. ``ending`` gives each its exit code."""

from __future__ import annotations


class CheckpointBadError(RuntimeError):
    """Checkpoints exist, and every one of them is proven to be damaged (exit code 65)."""


class CheckpointUnusableError(RuntimeError):
    """The directory or the configuration is at fault, not a checkpoint's content."""


class CheckpointUnavailableError(RuntimeError):
    """Storage or this host could not do now what a later start may do (exit code 74)."""
