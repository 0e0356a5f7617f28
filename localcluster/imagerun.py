"""Runs slow commands with progress: steps as they come, a sign of life in between."""

import os
import selectors
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from localcluster.progress import Progress

_HEARTBEAT_S = 10.0
_TAIL_LINES = 40


def run_slowly(
    command: Sequence[str | Path],
    what: str,
    progress: Progress,
    *,
    pick: Callable[[str], str | None] = lambda _: None,
    env: dict[str, str] | None = None,
) -> float:
    """Run a command that takes more than a few seconds, and tell how far it is.

    Args:
        command: Program and arguments.
        what: Put in front of every progress line.
        progress: Receives what `pick` makes of the output, and a sign of life every
            10 s with the command's newest line.
        pick: Makes a progress line of an output line, or None of most.
        env: Variables on top of this process's own.

    Returns:
        How long it took, in seconds.

    Raises:
        RuntimeError: It failed; the message holds the command and the end of its output.
    """
    started = said = time.monotonic()
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    with subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **(env or {})},
    ) as process:
        for line in _lines(process):
            tail.extend([line] if line else [])
            now = time.monotonic()
            news = pick(line)
            if news is None and now - said >= _HEARTBEAT_S:
                news = tail[-1] if tail else "working"
            if news is not None:
                progress(f"{what}, {now - started:.0f} s: {news[:100]}")
                said = now
    if process.returncode:
        output = "\n".join(tail)
        raise RuntimeError(
            f"{what} failed ({process.returncode}): {' '.join(map(str, command))}\n{output}"
        )
    return time.monotonic() - started


def _lines(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """The process's output lines; an empty one for every second without."""
    if process.stdout is None:
        raise ValueError("the process has no output pipe")
    descriptor, rest = process.stdout.fileno(), b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if not selector.select(timeout=1.0):
                yield ""
                continue
            chunk = os.read(descriptor, 65536)
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line.decode(errors="replace").rstrip() for line in lines)
            if not chunk:
                yield rest.decode(errors="replace").rstrip()
                return
