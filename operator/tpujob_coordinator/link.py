"""One agent's connection: nothing of it is believed, and little kept, before its proof."""

from __future__ import annotations

import asyncio
from typing import Protocol

from tpujob_agent.handshake import (
    GREETING_BYTES,
    GREETING_TIMEOUT_S,
    LINE_BYTES,
    ForgedError,
    Seal,
    new_nonce,
)
from tpujob_agent.protocol import Challenge, Hello, Message, ProtocolError, Refused
from tpujob_agent.wire import decode, encode
from tpujob_coordinator.lobby import Lobby

#: An agent that takes no messages for this many waiting bytes is dropped.
BACKLOG_BYTES = 1 << 20
#: What is left to be sent when a connection is closed may take so long.
LAST_WORDS_S = 5.0


class Listener(Protocol):
    """Who hears what agents say that have proved themselves."""

    def joined(self, link: Link, hello: Hello) -> None:
        """An agent has proved itself."""

    def said(self, link: Link, message: Message) -> None:
        """One of its later messages."""

    def ended(self, link: Link) -> None:
        """Its connection is over."""

    def complain(self, problem: str) -> None:
        """A line for the log; a flood of them is not written."""


class Link(asyncio.Protocol):
    """The coordinator's side of ``tpujob_agent.handshake``."""

    def __init__(self, listener: Listener, token: str, lobby: Lobby) -> None:
        self._listener, self._token, self._lobby = listener, token, lobby
        self._buffer = bytearray()
        self._nonce = new_nonce()
        self._theirs = Seal(token, "hello", self._nonce)
        self._ours: Seal | None = None  # once it has proved itself
        self._has_complained = False

    # ---- as asyncio calls it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Challenge it."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._address = str((transport.get_extra_info("peername") or ("unknown",))[0])
        self._lobby.enter(self, self._address, transport.abort)
        self._deadline = asyncio.get_running_loop().call_later(GREETING_TIMEOUT_S, self._is_late)
        transport.write(encode(Challenge(self._nonce)))

    def data_received(self, data: bytes) -> None:
        """Take whole lines; what is longer than any line ends the connection."""
        if self._ours is None and len(self._buffer) + len(data) > GREETING_BYTES:
            self._drop(f"more than {GREETING_BYTES} bytes before its proof")
            return
        self._buffer += data
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = rest
        for line in lines:
            if self._transport.is_closing():
                return
            self._take(bytes(line))
        if len(rest) > LINE_BYTES:
            self._drop(f"a line of more than {LINE_BYTES} bytes")

    def connection_lost(self, _error: Exception | None) -> None:
        """Tell who listens, if it has ever been heard."""
        self._deadline.cancel()
        self._lobby.leave(self, self._address)
        if self._ours is not None:
            self._listener.ended(self)

    # ---- lines

    def _take(self, line: bytes) -> None:
        try:
            body = self._theirs.opened(line)
            message = decode(body)
        except ForgedError as error:
            if self._ours is None:
                self._transport.write(encode(Refused(f"wrong token: {error}")))
            self._drop(str(error))
        except ProtocolError as error:  # a newer agent may know more kinds
            self._misunderstood(str(error))
        else:
            self._heed(message)

    def _heed(self, message: Message) -> None:
        if self._ours is not None:
            self._listener.said(self, message)
        elif isinstance(message, Hello) and message.nonce:
            self._deadline.cancel()
            self._lobby.leave(self, self._address)
            self._theirs = Seal(self._token, "agent", self._nonce, message.nonce)
            self._ours = Seal(self._token, "coordinator", self._nonce, message.nonce)
            self._listener.joined(self, message)
        else:
            self._drop(f"its first line is no hello but {message.TYPE}")

    def _misunderstood(self, problem: str) -> None:
        if self._ours is None:
            self._drop(problem)
        elif not self._has_complained:
            self._has_complained = True
            self._complain(f"{problem}; no more is told of what it says besides")

    # ---- towards the agent

    def send(self, line: bytes) -> None:
        """Send a message's line; an agent that takes none is dropped."""
        if self._ours is None or self._transport.is_closing():
            return
        self._transport.write(self._ours.signed(line))
        if self._transport.get_write_buffer_size() > BACKLOG_BYTES:
            self._complain("it does not read")
            self._transport.abort()

    def close(self) -> None:
        """End the connection, when what has been sent is on its way."""
        self._transport.close()
        if self._transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(LAST_WORDS_S, self._transport.abort)

    def _is_late(self) -> None:
        self._drop(f"no proof within {GREETING_TIMEOUT_S:g} s")

    def _drop(self, problem: str) -> None:
        self._complain(problem)
        self.close()

    def _complain(self, problem: str) -> None:
        self._listener.complain(f"connection from {self._address}: {problem}")
