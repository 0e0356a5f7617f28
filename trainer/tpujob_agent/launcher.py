"""The agent's side of the fork server."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tpujob_agent import zygote
from tpujob_agent.child import Start
from tpujob_agent.command import Kind, Program
from tpujob_agent.protocol import Env

#: Where the agent's own packages are: the zipapp, or a source folder.
HOME = str(Path(__file__).resolve().parent.parent)
_BOOT = (
    "import sys; sys.version_info >= (3, 10) or sys.exit(); "
    "sys.argv[1] in sys.path or sys.path.insert(0, sys.argv[1]); "
    "from tpujob_agent.zygote import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What the fork server tells: ready, started, exited; or gone, when it has died itself."""

    event: str
    details: dict[str, Any]

    def lines(self) -> Iterator[str]:
        """What a log should say of ``ready``."""
        for module, reason in self.details["failed"].items():
            yield f"cannot preload {module} ({reason}); going on without it"
        if self.details["threads"] > 1:
            threads = self.details["threads"]
            yield f"the fork server has {threads} threads after preloading: forks may hang"
        yield f"ready to fork trainers after {self.details['seconds']:.2f} s of imports"


class Launcher:
    """Starts the fork server and talks to it."""

    def __init__(self, program: Program, preload: tuple[str, ...]) -> None:
        self.program = program
        self.is_ready = False
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = self._spawn(theirs)
        self._socket.setblocking(False)
        if program.kind is Kind.EXEC:
            preload = ()
        request = {"program": program.to_json(), "preload": preload}
        self._socket.send(json.dumps(request).encode())

    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        program = self.program
        interpreter = program.interpreter or sys.executable
        arguments = [HOME, str(theirs.fileno()), str(os.getpid())]
        path = os.pathsep.join(filter(None, [HOME, os.environ.get("PYTHONPATH", "")]))
        return subprocess.Popen(
            [interpreter, *program.options, "-c", _BOOT, *arguments],
            env=_without_token() | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def fileno(self) -> int:
        """For a selector: readable when there is an answer."""
        return self._socket.fileno()

    def start(self, start: Start, output: int) -> None:
        """Fork a trainer that writes to the descriptor ``output``; it is not kept here."""
        packet = json.dumps({"op": "start", "start": start.to_json()}).encode()
        with contextlib.suppress(BrokenPipeError):  # told as "gone" by the next answer
            socket.send_fds(self._socket, [packet], [output])

    def kill(self) -> None:
        """Kill the running trainer with its process group."""
        with contextlib.suppress(BrokenPipeError):
            self._socket.send(b'{"op": "kill"}')

    def terminate(self) -> None:
        """Send SIGTERM to the running trainer, not to its helpers."""
        with contextlib.suppress(BrokenPipeError):
            self._socket.send(b'{"op": "terminate"}')

    def answers(self) -> list[Answer]:
        """All answers that have come; the last one may be ``gone``."""
        found: list[Answer] = []
        while True:
            try:
                packet = self._socket.recv(zygote.PACKET_BYTES)
            except BlockingIOError:
                return found
            except ConnectionError:
                packet = b""
            if not packet:
                return [*found, Answer("gone", {})]
            details = json.loads(packet)
            found.append(Answer(details.pop("event"), details))
            self.is_ready = self.is_ready or found[-1].event == "ready"

    def close(self) -> None:
        """End the fork server, and with it its trainer."""
        self._socket.close()
        self.process.kill()
        with contextlib.suppress(ChildProcessError):
            self.process.wait()


def _without_token() -> dict[str, str]:
    """The environment for the user's program, which has no business with the coordinator."""
    return {name: value for name, value in os.environ.items() if name != Env.TOKEN}
