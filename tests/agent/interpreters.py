"""Pythons of this machine that an image might have."""

from __future__ import annotations

import glob
import os
import subprocess
import sys

OLDEST = (3, 10)
_PLACES = [
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    os.path.expanduser("~/.pyenv/versions/3.*/bin/python3"),  # noqa: PTH111 - a pattern
]


def _version(python: str) -> tuple[int, int] | None:
    code = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    major, minor = map(int, done.stdout.split())
    return major, minor


def _find(*, too_old: bool = False) -> list[str]:
    """One interpreter per version, this one first; or those that the agent cannot run under."""
    if too_old:
        found = (python for place in _PLACES for python in sorted(glob.glob(place)))  # noqa: PTH207 - as below
        return [python for python in found if (_version(python) or OLDEST) < OLDEST]
    by_version = {sys.version_info[:2]: sys.executable}
    for place in _PLACES:
        for python in sorted(glob.glob(place)):  # noqa: PTH207 - one absolute pattern
            version = _version(python)
            if version and version >= OLDEST:
                by_version.setdefault(version, python)
    return list(by_version.values())


INTERPRETERS = _find()
TOO_OLD = _find(too_old=True)
