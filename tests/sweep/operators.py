"""Operator processes of a sweep: quickly made, and made again when they end."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from tests.operator.rig import OPERATOR_KEY
from tests.waiting import PATIENCE_S, wait_until


class Zygote:
    """The process from which all operators are forked."""

    def __init__(self) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.sweep.zygote"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._pids: queue.Queue[int] = queue.Queue()
        self._exited: set[int] = set()
        self._lock = threading.Lock()
        self._is_ready = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        if not self._is_ready.wait(PATIENCE_S):
            raise RuntimeError("the process from which operators are forked did not start")

    def close(self) -> None:
        """End all operators."""
        self._popen.kill()
        self._popen.wait(PATIENCE_S)
        self._listener.join(PATIENCE_S)  # it ends with the process's output
        for pipe in (self._popen.stdin, self._popen.stdout):
            assert pipe is not None
            pipe.close()

    def spawn(self, env: dict[str, str], log: Path) -> int:
        """Start an operator; returns its process id."""
        with self._lock:
            assert self._popen.stdin is not None
            self._popen.stdin.write(json.dumps({"env": env, "log": str(log)}) + "\n")
            self._popen.stdin.flush()
            return self._pids.get(timeout=PATIENCE_S)

    def has_ended(self, pid: int) -> bool:
        """Whether a process is over."""
        return pid in self._exited

    def _listen(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            message = json.loads(line)
            if "ready" in message:
                self._is_ready.set()
            elif "pid" in message:
                self._pids.put(message["pid"])
            else:
                self._exited.add(message["exited"])


@contextlib.contextmanager
def zygote() -> Iterator[Zygote]:
    """A process to fork operators from, for as long as it is needed."""
    made = Zygote()
    try:
        yield made
    finally:
        made.close()


#: For the one replica that there is: a Lease that has expired before the fault is over.
_ELECTION = {
    "TPUJOB_LEASE_NAME": "operator",
    "TPUJOB_LEASE_DURATION_S": "2",
    "TPUJOB_LEASE_RENEW_DEADLINE_S": "1.5",
    "TPUJOB_LEASE_RETRY_S": "0.5",
}


class Keeper:
    """One operator, which is started again whenever it ends, as its Deployment does.

    ``has_lease``: it writes only while it holds a Lease.
    """

    def __init__(
        self,
        source: Zygote,
        kubeconfig: Path,
        namespace: str,
        folder: Path,
        *,
        has_lease: bool = False,
    ) -> None:
        self._source = source
        self._folder = folder
        self._env = {
            **{name: value for name, value in os.environ.items() if "TPUJOB" not in name},
            "KUBECONFIG": str(kubeconfig),
            "TPUJOB_OPERATOR_KEY": OPERATOR_KEY,
            "TPUJOB_OPERATOR_IMAGE": "registry.test/operator:1",
            "TPUJOB_TRAINER_IMAGE": "registry.test/trainer:1",
            "TPUJOB_WATCH_NAMESPACES": namespace,
            "TPUJOB_METRICS_PORT": "0",
            "TPUJOB_PROBE_PORT": "0",
            "TPUJOB_NAMESPACE": namespace,
            **(_ELECTION if has_lease else {}),
        }
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self.pid = 0
        self.starts = 0

    def __enter__(self) -> Self:
        """Start it, and wait until it is ready."""
        self._start()
        self._thread.start()
        wait_until(lambda: "the operator is ready" in self.text, "ready operator")
        return self

    def __exit__(self, *_: object) -> None:
        """End it for good."""
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        self.kill()
        wait_until(lambda: self._source.has_ended(self.pid), "end of the operator")

    @property
    def text(self) -> str:
        """All logs so far."""
        return "".join(path.read_text() for path in sorted(self._folder.glob("operator-*.log")))

    def kill(self) -> None:
        """End it as a power cut would; it is started again at once."""
        self.send(self.pid, signal.SIGKILL)

    @staticmethod
    def send(pid: int, number: signal.Signals) -> None:
        """Send a signal to an operator that may be gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def _start(self) -> None:
        self.starts += 1
        log = self._folder / f"operator-{self.starts:03d}.log"
        log.touch()
        self.pid = self._source.spawn(self._env, log)

    def _keep(self) -> None:
        while not self._stopping.wait(0.02):
            if self._source.has_ended(self.pid):
                self._start()
