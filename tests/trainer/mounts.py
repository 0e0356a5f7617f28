"""Commands that run others with file systems of their own, which nobody else sees."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tpujob_agent.protocol import Env

_IN_NAMESPACE = ("unshare", "--mount", "--propagation", "private", "sh", "-c")


def mounted(place: Path, options: str, keep: Path) -> tuple[str, ...]:
    """A command prefix: runs the rest with a file system of its own at ``place``, and copies it."""
    script = (
        f"mkdir -p {place} && mount -t tmpfs -o {options} none {place} || exit 99; "
        f'"$@"; code=$?; cp -a {place} {keep}; exit $code'
    )
    return (*_IN_NAMESPACE, script, "sh")


def on_process_1(command: str) -> tuple[str, ...]:
    """A command prefix: where process 1 of a world runs, another command has run before."""
    script = f'if [ "${Env.JAX_PROCESS_ID}" = 1 ]; then {command} || exit 99; fi; exec "$@"'
    return (*_IN_NAMESPACE, script, "sh")


def _can_mount() -> bool:
    command = [*_IN_NAMESPACE, "mount -t tmpfs none /mnt"]
    return not subprocess.run(command, check=False, capture_output=True).returncode


needs_mount = pytest.mark.skipif(not _can_mount(), reason="this user cannot mount a file system")
