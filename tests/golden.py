"""Texts that somebody has reviewed."""

from __future__ import annotations

import os
from pathlib import Path


def assert_reviewed(path: Path, made: str) -> None:
    """Fail unless the text is the reviewed one; with ``UPDATE_GOLDEN=1`` it is written first."""
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(made)
    assert made == path.read_text()
