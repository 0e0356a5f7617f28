"""A coordinator and agents as real processes on loopback, for tests."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.waiting import wait_until
from tpujob_agent import processes, signing
from tpujob_agent.build import build
from tpujob_agent.protocol import CoordinatorConfig, Env, EventKind
from tpujob_agent.trainer import record_path

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "0123456789abcdef"
#: On a busy machine a save takes longer than the usual 30 s.
GRACE_S = 100
NO_LIMITS = {"userError": -1, "process": -1, "infrastructure": -1, "noProgress": -1}


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on right now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def signature(token: str, method: str, path: str, body: Any = None) -> dict[str, str]:
    """The header of a request, of which the path may have a query."""
    parts = urllib.parse.urlsplit(path)
    query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
    now_ms = time.time_ns() // 1_000_000
    value = signing.sign(token, method, parts.path, now_ms, query=query, body=body)
    return {signing.SIGNATURE_HEADER: value}


def jax_port_base() -> int:
    """Start of a range of 50 ports below the ephemeral ones, unlikely to be another test's."""
    return random.SystemRandom().randrange(200, 640) * 50


class Process:
    """A child that cannot outlive the test, with its output in a file."""

    def __init__(self, command: Sequence[str], env: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as sink:
            self.popen = subprocess.Popen(
                command,
                env=env,
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
                preexec_fn=functools.partial(processes.die_with_parent, os.getpid()),  # noqa: PLW1509 - tests run in one thread
            )

    @property
    def text(self) -> str:
        """Its output so far."""
        return self.log.read_text(errors="replace")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal."""
        self.popen.send_signal(number)

    def wait(self, limit_s: float = 120.0) -> int:
        """Wait for its end; returns the exit code, negative for a signal."""
        return self.popen.wait(limit_s)


class Rig:
    """One job: a coordinator and its agents."""

    def __init__(
        self,
        folder: Path,
        *,
        slices: int = 2,
        hosts: int = 2,
        spares: int = 0,
        budgets: dict[str, int] | None = None,
        **more: Any,
    ) -> None:
        self.folder = folder
        agent_port, http_port = free_ports(2)
        self.config = CoordinatorConfig(
            namespace="test",
            job="j",
            attempt=1,
            slices=slices,
            spares=spares,
            hosts_per_slice=hosts,
            budgets={**NO_LIMITS, **(budgets or {})},
            agent_port=agent_port,
            http_port=http_port,
            jax_port_base=jax_port_base(),
            **more,
        )
        self.archive = folder / "agent.pyz"
        build(self.archive)
        self.coordinator: Process | None = None
        self.agents: dict[tuple[int, int], Process] = {}
        self._agent_numbers = 0
        self._records: set[Path] = set()

    # ---- processes

    def start_coordinator(self) -> Process:
        """Start the coordinator, or start it anew."""
        env = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}",
            Env.COORDINATOR_CONFIG: self.config.to_json(),
            Env.TOKEN: TOKEN,
        }
        command = [sys.executable, "-m", "tpujob_coordinator"]
        self.coordinator = Process(command, env, self.folder / "coordinator.log")
        return self.coordinator

    def run_dir(self, slice_index: int, host: int) -> Path:
        """The run directory of a pod."""
        return self.folder / f"run-{slice_index}-{host}"

    def pod(self, slice_index: int, host: int) -> str:
        """Name of a pod."""
        return f"j-1-slice-{slice_index}-{host}"

    def start_agent(
        self,
        slice_index: int,
        host: int,
        command: Sequence[str],
        *,
        python: str = sys.executable,
        env: dict[str, str] | None = None,
    ) -> Process:
        """Start the agent of a pod, or start it anew as the kubelet would."""
        self._agent_numbers += 1
        everything = {
            **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            Env.COORDINATOR: f"localhost:{self.config.agent_port}",
            Env.TOKEN: TOKEN,
            Env.SLICE: str(slice_index),
            Env.HOST: str(host),
            Env.ATTEMPT: "1",
            Env.POD_NAME: self.pod(slice_index, host),
            Env.POD_IP: "127.0.0.1",
            Env.NODE_NAME: f"node{slice_index}{host}",
            "TPUJOB_THREAD_GUARD": "1",
            Env.GRACE_S: str(GRACE_S),
            Env.RUN_DIR: str(self.run_dir(slice_index, host)),
            **(env or {}),
        }
        log = self.folder / f"agent-{slice_index}-{host}-{self._agent_numbers}.log"
        self._records.add(record_path(Path(everything[Env.RUN_DIR]), everything[Env.POD_NAME]))
        agent = Process([python, str(self.archive), "--", *command], everything, log)
        self.agents[slice_index, host] = agent
        return agent

    def start(self, command: Sequence[str], **options: Any) -> None:
        """Start the coordinator and an agent for every host of every slice."""
        self.start_coordinator()
        for slice_index in range(self.config.slices + self.config.spares):
            for host in range(self.config.hosts_per_slice):
                self.start_agent(slice_index, host, command, **options)

    def trainer_pid(self, slice_index: int, host: int) -> int:
        """Process id of a pod's running trainer; waits for it."""
        path = self.run_dir(slice_index, host) / "trainer.pid"
        return wait_until(lambda: path.exists() and int(path.read_text() or 0), f"{path} is there")

    def close(self) -> None:
        """Kill everything."""
        for process in [*self.agents.values(), *filter(None, [self.coordinator])]:
            process.popen.kill()
            process.popen.wait()
        for record in self._records:
            record.unlink(missing_ok=True)

    def kill_coordinator(self) -> None:
        """Kill it, and wait until it is gone."""
        assert self.coordinator is not None
        self.coordinator.kill()
        self.coordinator.wait()

    # ---- timeline

    def get(self, path: str, token: str = TOKEN) -> Any:
        """GET a JSON document of the coordinator."""
        url = f"http://127.0.0.1:{self.config.http_port}{path}"
        headers = signature(token, "GET", path)
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            body = response.read()
        return json.loads(body) if body.startswith(b"{") else body.decode()

    def events(self, *kinds: EventKind) -> list[dict[str, Any]]:
        """Events told so far (of these kinds), of all coordinators; also after their end."""
        if self.coordinator is None:
            return []
        found = []
        for line in self.coordinator.text.splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if "kind" in event and (not kinds or event["kind"] in kinds):
                    found.append(event)
        return found

    def wait_event(
        self, kind: EventKind, limit_s: float = 120.0, count: int = 1, **data: Any
    ) -> dict[str, Any]:
        """Wait for the ``count``-th event of this kind with these data."""

        def matching() -> dict[str, Any] | None:
            found = [e for e in self.events(kind) if data.items() <= e["data"].items()]
            return found[count - 1] if len(found) >= count else None

        try:
            return wait_until(matching, f"event {kind} {data}", limit_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from error

    def story(self) -> str:
        """Everything that was printed, for a failed test's message."""
        parts = [process.text[-3000:] for process in self.agents.values()]
        coordinator = self.coordinator.text[-6000:] if self.coordinator else ""
        return "\n--- agent\n".join([coordinator, *parts])


@contextlib.contextmanager
def rig(folder: Path, **options: Any) -> Iterator[Rig]:
    """A rig that is cleaned up."""
    made = Rig(folder, **options)
    try:
        yield made
    finally:
        made.close()
