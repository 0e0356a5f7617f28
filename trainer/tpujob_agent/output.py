"""The trainer's output: passed on to the container's log, its end kept, progress read from it."""

from __future__ import annotations

import os
import re
import select
import time

TAIL_BYTES = 4096
#: The end of a line that is searched for progress: a pattern may take time by the square of it.
_SEARCHED_BYTES = 1024
#: No step has more digits; a number with thousands of them could not even be converted.
_STEP_DIGITS = 15
#: A pipe that polls writable takes at least this much without blocking (PIPE_BUF).
_CHUNK_BYTES = 4096
_READ_BYTES = 65_536
#: In one turn of the agent's loop, of a trainer that writes faster than we read.
_READS = 64
#: With more than this waiting for a slow log, the older half of it is dropped.
_BACKLOG_BYTES = 1 << 20


class Output:
    """Passes one trainer's output on. Never blocks the agent, nor the trainer.

    A log that takes nothing costs lines, and says later how many: training is worth more.
    """

    def __init__(self, log: int, pattern: re.Pattern[bytes] | None = None) -> None:
        self._log = log
        self._pattern = pattern
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        self._backlog = bytearray()
        self._dropped = 0  # lines that the log has not been told of
        self._is_at_line_start = True
        self._line = b""
        self._tail = bytearray()
        self.step = 0
        self.step_at_ms = 0

    def fileno(self) -> int:
        """For a selector: readable when there is output."""
        return self._read

    @property
    def writer(self) -> int:
        """Descriptor for the trainer; see ``close_writer``."""
        return self._write

    @property
    def has_backlog(self) -> bool:
        """Whether output still waits for the log to take it."""
        return bool(self._backlog)

    @property
    def tail(self) -> str:
        """The newest output, at most ``TAIL_BYTES``."""
        return self._tail.decode(errors="replace")

    def close_writer(self) -> None:
        """Drop the agent's copy of the trainer's end."""
        if self._write >= 0:
            os.close(self._write)
            self._write = -1

    def pump(self) -> bool:
        """Pass on what is there; False at the end of the output."""
        is_open = True
        for _ in range(_READS):
            try:
                data = os.read(self._read, _READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                is_open = False
                break
            self._take(data)
            if len(data) < _READ_BYTES:
                break
        self.flush()
        return is_open

    def _take(self, data: bytes) -> None:
        self._backlog += data
        if len(self._backlog) > _BACKLOG_BYTES:
            self._drop_oldest()
        self._tail += data
        del self._tail[:-TAIL_BYTES]
        if self._pattern is None:
            return
        *lines, self._line = (self._line + data).split(b"\n")
        self._line = self._line[-_SEARCHED_BYTES:]
        for line in lines:
            if found := self._pattern.search(line[-_SEARCHED_BYTES:]):
                self._progress(found["step"])

    def _drop_oldest(self) -> None:
        end = self._backlog.find(b"\n", _BACKLOG_BYTES // 2) + 1 or len(self._backlog)
        self._dropped += self._backlog.count(b"\n", 0, end)
        del self._backlog[:end]

    def _notice(self) -> bytes:
        """What stands in the log instead of the lines that were dropped."""
        dropped, self._dropped = self._dropped, 0
        begin = b"" if self._is_at_line_start else b"\n"
        return b"%stpujob-agent: %d lines are missing here: the log took none\n" % (begin, dropped)

    def _progress(self, text: bytes) -> None:
        if text.isdigit() and len(text) <= _STEP_DIGITS:
            self.step, self.step_at_ms = int(text), time.time_ns() // 1_000_000

    def flush(self) -> None:
        """Give the log what it takes without blocking."""
        while (self._backlog or self._dropped) and _is_writable(self._log):
            if self._dropped:
                self._backlog[:0] = self._notice()
            try:
                written = os.write(self._log, self._backlog[:_CHUNK_BYTES])
            except OSError:  # nobody reads the log any more; training is worth more
                written = len(self._backlog)
            self._is_at_line_start = self._backlog[written - 1 : written] == b"\n"
            del self._backlog[:written]

    def close(self) -> None:
        """Drop the pipe; what strays still write is lost."""
        self.close_writer()
        os.close(self._read)


def _is_writable(descriptor: int) -> bool:
    return bool(select.select((), (descriptor,), (), 0)[1])
