"""How an agent and its coordinator prove themselves to each other, and sign what they say.

Both hold the job's token, which never travels. S and A are their nonces::

    coordinator  {"type": "challenge", "nonce": S, "protocol": 1, "oldest_protocol": 1}
    agent        CODE {"type": "hello", "nonce": A, "protocol": 1, ...}  key: token, "hello", S
    coordinator  CODE {"type": "welcome"}                        key: token, "coordinator", S, A
    agent        CODE {"type": "report", ...}                          key: token, "agent", S, A

A code is the HMAC-SHA256 of the line and of its number in its direction. Who lacks the token
says nothing that is believed, and cannot repeat, leave out or reorder what was said. Nothing
is encrypted.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable

from tpujob_agent.protocol import (
    OLDEST_PROTOCOL,
    PROTOCOL_VERSION,
    Challenge,
    Hello,
    Message,
    ProtocolError,
    Refused,
    Welcome,
)
from tpujob_agent.wire import decode, encode

#: Longest line before the other side has proved itself, newline included.
GREETING_BYTES = 4096
#: Longest line after that: a report with stacks and a full ring of losses is below 100 kB.
LINE_BYTES = 256 << 10
#: The other side has so long to prove itself.
GREETING_TIMEOUT_S = 5.0
_CODE_CHARS = 32
_NONCE_CHARS = 32


class ForgedError(ProtocolError):
    """A line that the token's holder has not made, or not for this place in the stream."""


def new_nonce() -> str:
    """A number that is used once."""
    return os.urandom(_NONCE_CHARS // 2).hex()


def common_protocol(oldest: int, newest: int) -> int | None:
    """The newest protocol that we and a peer with this range speak; None: there is none.

    Each release speaks that of the release before as well, so that a job's coordinator and its
    agents may be one release apart.
    """
    common = min(PROTOCOL_VERSION, newest)
    return common if common >= max(OLDEST_PROTOCOL, oldest) else None


class Seal:
    """Signs the lines of one direction, or checks them: both sides count them."""

    def __init__(self, token: str, label: str, *nonces: str) -> None:
        purpose = "\n".join(("tpujob", label, *nonces)).encode()
        key = hmac.digest(token.encode(), purpose, "sha256")
        self._keyed = hmac.new(key, digestmod="sha256")
        self._number = 0

    def _code(self, body: bytes) -> bytes:
        keyed = self._keyed.copy()
        keyed.update(b"%d " % self._number)
        keyed.update(body)
        self._number += 1
        return keyed.hexdigest()[:_CODE_CHARS].encode()

    def signed(self, line: bytes) -> bytes:
        """A line, newline included, with its code before it."""
        return b"%s %s" % (self._code(line[:-1]), line)

    def opened(self, line: bytes) -> bytes:
        """The line without newline and code.

        Raises:
            ForgedError: the code is not the one of this line.
        """
        code, _, body = line.partition(b" ")
        if not hmac.compare_digest(code, self._code(body)):
            raise ForgedError("the sender does not prove that it has the job's token")
        return body


class AgentSide:
    """One connection as its agent sees it: nothing is believed before the coordinator's proof."""

    def __init__(self, token: str, introduce: Callable[[str, int], Hello]) -> None:
        """Begin.

        Args:
            token: of the job.
            introduce: the hello for a nonce and a protocol.
        """
        self._token, self._introduce = token, introduce
        self._theirs: Seal | None = None
        self._ours: Seal | None = None
        self.is_trusted = False

    def read(self, line: bytes) -> Message:
        """The message of a line.

        Raises:
            ForgedError: the connection is to be left: its other end is no coordinator of ours.
            ProtocolError: the coordinator says what is not understood; it may be a newer one.
        """
        if self._theirs is None or (line.startswith(b"{") and not self.is_trusted):
            return _greeting(line)
        message = decode(self._theirs.opened(line))
        self.is_trusted = self.is_trusted or isinstance(message, Welcome)
        return message

    def answer(self, challenge: Challenge) -> bytes:
        """The hello that proves us.

        Raises:
            ForgedError: there is no protocol that both speak, or it has challenged us before.
        """
        if self._theirs is not None:
            raise ForgedError("it has sent a second challenge")
        protocol = common_protocol(challenge.oldest_protocol, challenge.protocol)
        if protocol is None:
            raise ForgedError(
                f"it speaks protocol {challenge.oldest_protocol} to {challenge.protocol}, this "
                f"agent {OLDEST_PROTOCOL} to {PROTOCOL_VERSION}: use images of one release"
            )
        nonces = challenge.nonce, new_nonce()
        self._theirs = Seal(self._token, "coordinator", *nonces)
        self._ours = Seal(self._token, "agent", *nonces)
        hello = self._introduce(nonces[1], protocol)
        return Seal(self._token, "hello", challenge.nonce).signed(encode(hello))

    def signed(self, message: Message) -> bytes:
        """A message's line; only after ``is_trusted``."""
        assert self._ours is not None
        return self._ours.signed(encode(message))


def _greeting(line: bytes) -> Message:
    """What may come unsigned: it costs at most a delay to believe it."""
    try:
        message = decode(line)
    except ProtocolError as error:
        raise ForgedError(f"it does not greet as a coordinator does: {error}") from error
    if not isinstance(message, Challenge | Refused):
        raise ForgedError(f"it sends {message.TYPE} before it has proved itself")
    return message
