"""The TPU compiler in tests: real device descriptions, no TPU."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
import sys
from pathlib import Path
from unittest import mock

import jax
import pytest

from tpujob_ahead.target import Target, devices_of, target

ROOT = Path(__file__).parents[2]


@functools.cache
def library() -> str:
    """Where libtpu is; it is downloaded into the machine's cache if need be."""
    if platform.machine() != "x86_64" or not sys.platform.startswith("linux"):
        pytest.skip(f"libtpu has no wheel for {sys.platform} on {platform.machine()}")
    found = subprocess.run(
        ["bash", "tools/libtpu.sh", sys.prefix],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return found.stdout.strip()


def with_compiler() -> contextlib.AbstractContextManager[object]:
    """The environment of a machine that has it, for a while: children of other tests do without."""
    return mock.patch.dict(os.environ, {"TPU_LIBRARY_PATH": library()})


def slices(accelerator: str, topology: str, count: int = 1) -> tuple[Target, list[jax.Device]]:
    """Slices and the compiler's descriptions of their devices."""
    wanted = target(accelerator, topology, count)
    with with_compiler():
        return wanted, devices_of(wanted)
