"""Where every thread of a trainer is: asked for by a signal, written by Python's faulthandler.

It answers from within any blocked call, also one of a C++ runtime, because the
handler is C code that needs neither the interpreter nor its lock.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from pathlib import Path

#: Nobody else's: programs take SIGUSR1 and SIGUSR2, C libraries the first real-time signals.
SIGNAL = signal.SIGRTMIN + 8
#: Kept of one process: a few hundred frames.
MOST_BYTES = 16_384
#: An answer takes milliseconds. Who has not answered by now is stopped or has no handler.
PATIENCE_S = 1.0
#: Instead of stacks.
NO_ANSWER = "no stacks: the process does not answer"
#: Appending, as the agent empties the file before each question.
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
#: The file has not grown for this long: the answer is complete.
_QUIET_S = 0.1


def listen(path: str) -> None:
    """In the trainer: answer ``SIGNAL`` with the stacks of all threads, into ``path``."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(path, _FLAGS, 0o600)
        faulthandler.register(SIGNAL, file=descriptor, all_threads=True, chain=False)


class Question:
    """One question to one trainer, and the answer as far as it has come."""

    def __init__(self, pid: int, path: Path, now_s: float) -> None:
        self._path = path
        self._asked_s = self._grown_s = now_s
        self._size = 0
        self.answer = ""  # never empty once it is over
        if not path.exists():  # without the handler, the signal would kill
            self.answer = "no stacks: the program does not run in the agent's Python"
            return
        os.truncate(path, 0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, SIGNAL)

    def look(self, now_s: float) -> str:
        """The answer when it is complete, or says that none came; until then empty."""
        if not self.answer:
            self._read(now_s)
        return self.answer

    def _read(self, now_s: float) -> None:
        text = self._path.read_text(encoding="utf-8", errors="replace")
        if len(text) != self._size:
            self._size, self._grown_s = len(text), now_s
        elif text and now_s - self._grown_s >= _QUIET_S:
            self.answer = text[:MOST_BYTES]
        elif now_s - self._asked_s >= PATIENCE_S:
            self.answer = text[:MOST_BYTES] or NO_ANSWER
