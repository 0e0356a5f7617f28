"""The agent's connection to the coordinator: never blocks, reconnects for ever."""

from __future__ import annotations

import contextlib
import queue
import random
import socket
import threading
import time
from collections.abc import Callable

from tpujob_agent.handshake import (
    GREETING_BYTES,
    GREETING_TIMEOUT_S,
    LINE_BYTES,
    AgentSide,
    ForgedError,
)
from tpujob_agent.protocol import Challenge, Message, ProtocolError

CONNECT_TIMEOUT_S = 3.0
BACKOFF_FIRST_S = 0.1
BACKOFF_LAST_S = 1.0
#: Unacknowledged data is given up after this: a coordinator that lost power sends no reset.
_USER_TIMEOUT_MS = 5_000
_READ_BYTES = 65_536
#: A coordinator that reads nothing this long (bytes waiting) is left.
_BACKLOG_BYTES = 4 << 20


class Stream:
    """Newline-delimited messages over TCP, driven by the agent's selector loop."""

    def __init__(
        self, host: str, port: int, begin: Callable[[], AgentSide], wake: Callable[[], None]
    ) -> None:
        """Prepare; ``connect`` begins.

        Args:
            host: of the coordinator.
            port: of the coordinator.
            begin: makes our side of the handshake of a new connection.
            wake: makes the loop call ``connect``.
        """
        self._address = (host, port)
        self._begin = begin
        self._side: AgentSide | None = None
        self._greeted_at = 0.0
        self._wake = wake
        self._found: queue.SimpleQueue[socket.socket | OSError] = queue.SimpleQueue()
        self._connecting = False
        self._retry_at = 0.0
        self._backoff_s = BACKOFF_FIRST_S
        self._input = b""
        self._output = bytearray()
        self.socket: socket.socket | None = None
        self.last_error = ""
        self._alone_since = time.monotonic()

    @property
    def alone_s(self) -> float:
        """Seconds without a coordinator that has proved itself; 0: there is one."""
        return 0.0 if self.is_trusted else time.monotonic() - self._alone_since

    @property
    def is_trusted(self) -> bool:
        """Whether there is a connection, and its other end has proved itself."""
        return self._side is not None and self._side.is_trusted

    @property
    def wants_write(self) -> bool:
        """Whether messages wait for the socket to take them."""
        return bool(self._output)

    def connect(self) -> bool:
        """Advance connecting; True once, when a new connection is there."""
        if self.socket is not None:
            is_late = time.monotonic() - self._greeted_at >= GREETING_TIMEOUT_S
            if is_late and not self.is_trusted:
                self.close(f"no proof within {GREETING_TIMEOUT_S:g} s that it has the job's token")
            return False
        with contextlib.suppress(queue.Empty):
            found = self._found.get_nowait()
            self._connecting = False
            if isinstance(found, socket.socket):
                self._adopt(found)
                return True
            self.last_error = str(found)
            self.wait(self._backoff_s)
            self._backoff_s = min(BACKOFF_LAST_S, self._backoff_s * 2)
        if not self._connecting and time.monotonic() >= self._retry_at:
            self._connecting = True
            # Looking up a name can block for many seconds, which the loop must not.
            threading.Thread(target=self._dial, daemon=True, name="connect").start()
        return False

    def wait(self, seconds: float) -> None:
        """Do not dial for this long, jittered: agents must not come back all at once."""
        self._retry_at = time.monotonic() + seconds * random.uniform(0.5, 1.0)  # noqa: S311 - jitter

    def _dial(self) -> None:
        found: socket.socket | OSError
        try:
            found = socket.create_connection(self._address, timeout=CONNECT_TIMEOUT_S)
        except OSError as error:
            found = error
        self._found.put(found)
        self._wake()

    def _adopt(self, found: socket.socket) -> None:
        found.setblocking(False)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
        self.socket, self._input = found, b""
        self._side, self._greeted_at = self._begin(), time.monotonic()
        self._output.clear()

    def send(self, message: Message) -> None:
        """Send, or keep until the socket takes it; dropped without a trusted connection."""
        if self._side is None or not self._side.is_trusted:
            return
        self._output += self._side.signed(message)
        self.flush()
        if len(self._output) > _BACKLOG_BYTES:
            self.close("the coordinator does not read")

    def flush(self) -> None:
        """Give the socket what it takes."""
        if self.socket is None:
            return
        try:
            while self._output:
                del self._output[: self.socket.send(self._output)]
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(str(error))

    def receive(self) -> list[Message]:
        """Messages that have come, of one that has proved itself, or refuses us.

        Malformed lines are skipped: a newer peer may know more.
        """
        if self.socket is None or self._side is None:
            return []
        try:
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            self.close(str(error))
            return []
        if not data:
            self.close("closed by the coordinator")
            return []
        *lines, self._input = (self._input + data).split(b"\n")
        messages = []
        try:
            for line in lines:
                messages += self._take(self._side, line)
        except ForgedError as error:
            self.close(str(error))
        if len(self._input) > (LINE_BYTES if self.is_trusted else GREETING_BYTES):
            self.close("it sends a line that is too long")
        return messages

    def _take(self, side: AgentSide, line: bytes) -> list[Message]:
        try:
            message = side.read(line)
        except ForgedError:
            raise
        except ProtocolError:
            return []
        if isinstance(message, Challenge):
            self._output += side.answer(message)
            self.flush()
            return []
        if side.is_trusted:
            self._backoff_s, self.last_error = BACKOFF_FIRST_S, ""  # it works
        return [message]

    def close(self, reason: str) -> None:
        """Leave the connection; ``connect`` makes a new one."""
        if self.socket is not None:
            if self.is_trusted:
                self._alone_since = time.monotonic()
            self.socket.close()
            self.socket = self._side = None
            self.last_error = reason
            self._output.clear()
            self.wait(self._backoff_s)
            self._backoff_s = min(BACKOFF_LAST_S, self._backoff_s * 2)
