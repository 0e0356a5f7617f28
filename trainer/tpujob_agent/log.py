"""The agent's own lines in the container's log."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


def log(message: str) -> None:
    """One line on standard error, recognisable among the trainer's output."""
    print(f"tpujob-agent: {message}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def surviving(what: str) -> Iterator[None]:
    """Do without a file that only helps people: a disk may be full, or broken."""
    try:
        yield
    except OSError as error:
        log(f"{what}: {error}")
