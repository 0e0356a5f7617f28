"""One coordinator process and 10,000 agents: what it costs, and how fast a loss reaches all.

The coordinator is the real program. The agents are sockets of this process that say what
agents of a training job say, each line made once: what is measured is the coordinator.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import resource
import sys
import time
from pathlib import Path

from bench.figures import machine, show
from tpujob_agent import protocol, wire
from tpujob_agent.handshake import AgentSide
from tpujob_agent.protocol import CoordinatorConfig, Env, Phase, ProcessState, Report

_HOSTS = 16  # a slice of 64 chips
_TOKEN = "benchmark"  # noqa: S105 - of a process that lives as long as this one
_STEADY_S = 20.0
_TICKS = os.sysconf("SC_CLK_TCK")


class _Agents:
    """All agents of a job, on one event loop."""

    def __init__(self, slices: int) -> None:
        self.places = list(itertools.product(range(slices), range(_HOSTS)))
        self.links: list[_Link] = []
        self.interval_s = wire.report_interval_s(slices * _HOSTS)
        self.stopped_at: list[float] = []
        self._started = self._wanted = 0
        self._reached = asyncio.Event()
        self.is_over = False

    async def join(self, port: int) -> None:
        """Connect, a hundred at a time, as pods come up."""
        loop = asyncio.get_running_loop()
        for first in range(0, len(self.places), 100):
            made = [
                loop.create_connection(functools.partial(_Link, self, *place), "127.0.0.1", port)
                for place in self.places[first : first + 100]
            ]
            self.links += [link for _, link in await asyncio.gather(*made)]

    async def reach(self, started: int) -> None:
        """Wait until so many trainers have been started since the beginning."""
        self._wanted = started
        self._reached.clear()
        self.count(0)
        await self._reached.wait()

    def count(self, more: int = 1) -> None:
        """So many more trainers have been started."""
        self._started += more
        if self._started >= self._wanted:
            self._reached.set()

    async def report(self) -> None:
        """Reports as of agents whose trainers train, spread evenly over their interval."""
        loop = asyncio.get_running_loop()
        begun, sent = loop.time(), 0
        while True:
            elapsed = loop.time() - begun
            due = int(elapsed / self.interval_s * len(self.places))
            for number in range(sent, due):
                self.links[number % len(self.links)].report(step=2 + int(elapsed))
            sent = due
            await asyncio.sleep(0.005)


class _Link(asyncio.Protocol):
    """One agent's stream."""

    def __init__(self, agents: _Agents, slice_index: int, host: int) -> None:
        self._agents = agents
        self._place = slice_index, host
        self._buffer = b""
        self._generation = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._side = AgentSide(_TOKEN, self._introduce)

    def _introduce(self, nonce: str, version: int) -> protocol.Hello:
        slice_index, host = self._place
        name = f"j-1-slice-{slice_index}-{host}"
        ip = f"10.{slice_index // 250}.{slice_index % 250}.{host}"
        return protocol.Hello(*self._place, name, name, ip, name, _now_ms(), 1, version, nonce)

    def data_received(self, data: bytes) -> None:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            message = self._side.read(line)
            if isinstance(message, protocol.Challenge):
                self.transport.write(self._side.answer(message))
            elif isinstance(message, protocol.Welcome):
                idle = Report(_now_ms(), ProcessState.IDLE, 0)
                self.transport.write(self._side.signed(idle))
            elif isinstance(message, protocol.Run):
                self._generation, self._processes = message.generation, message.num_processes
                self._agents.count()
                self.report(step=0)
            elif isinstance(message, protocol.Stop):
                self._agents.stopped_at.append(time.perf_counter())
                self._end(ProcessState.STOPPED)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._agents.is_over:
            raise RuntimeError(f"the coordinator has dropped {self._place}: {error}")

    def report(self, step: int) -> None:
        """A line as a trainer's progress makes it; none from one that does not run."""
        if not self._generation:
            return
        self._send(
            ProcessState.RUNNING,
            phase=Phase.TRAIN,
            phase_at_ms=_now_ms(),
            step=step,
            step_at_ms=_now_ms() if step else 0,
            first_step=min(1, step),
            first_step_at_ms=_now_ms() if step else 0,
            restored_step=0,
            losses=[[float(step), 2.5]] if step and not any(self._place) else [],
        )

    def crash(self) -> None:
        """The trainer is killed."""
        self._end(ProcessState.EXITED)

    def _end(self, state: ProcessState) -> None:
        self._send(state, signal=9, exited_at_ms=_now_ms())
        self._generation = 0

    def _send(self, state: ProcessState, **fields: object) -> None:
        report = Report(_now_ms(), state, self._generation, self._processes, **fields)  # type: ignore[arg-type] # as given above
        self.transport.write(self._side.signed(report))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def run(repeat: int, number: int = 10_000) -> None:
    """Print what one coordinator takes for a job of this many hosts."""
    print(machine(), flush=True)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the coordinator inherits it
    asyncio.run(_run(repeat, number))


async def _run(repeat: int, number: int) -> None:
    agents = _Agents(number // _HOSTS)
    coordinator, port = await _start(len(agents.places) // _HOSTS)
    try:
        started = time.perf_counter()
        await agents.join(port)
        show(f"{len(agents.places)} agents: connected", [_since(started)], "s")
        await agents.reach(len(agents.places))
        reporting = asyncio.create_task(agents.report())
        show(f"{len(agents.places)} agents are told to start after", [_since(started)], "s")
        usages = []
        for _ in range(repeat):
            before, at = _cpu_s(coordinator.pid), time.perf_counter()
            await asyncio.sleep(_STEADY_S)
            usages.append(100 * (_cpu_s(coordinator.pid) - before) / _since(at))
        show("CPU while they train", usages, "% of a core", bar=60)
        delays = []
        for crash in range(1, repeat + 1):
            agents.stopped_at.clear()
            at = time.perf_counter()
            agents.links[len(agents.links) // 2].crash()
            await agents.reach((1 + crash) * len(agents.places))
            told = sorted(moment - at for moment in agents.stopped_at)
            delays.append(told[int(0.99 * len(told))])
            show("  from a loss until the next world is started", [_since(at)], "s")
            await asyncio.sleep(2.0)
        show("a loss reaches 99 of 100 agents after", delays, "s", bar=1)
        show("memory (peak)", [_peak_mb(coordinator.pid)], "MB", bar=300)
        reporting.cancel()
    finally:
        agents.is_over = True
        coordinator.kill()
        await coordinator.wait()


async def _start(slices: int) -> tuple[asyncio.subprocess.Process, int]:
    """A coordinator, and the port on which it listens to agents."""
    ports = await _free_port(), await _free_port()
    limits = dict.fromkeys(("userError", "process", "infrastructure", "noProgress"), -1)
    config = CoordinatorConfig("ns", "j", 1, slices, 0, _HOSTS, limits, {}, *ports)
    env = {**os.environ, Env.COORDINATOR_CONFIG: config.to_json(), Env.TOKEN: _TOKEN}
    program = (sys.executable, "-m", "tpujob_coordinator")
    process = await asyncio.create_subprocess_exec(
        *program, env=env, stdout=asyncio.subprocess.DEVNULL
    )
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", ports[1])
        except OSError:
            await asyncio.sleep(0.05)
            continue
        writer.close()
        return process, ports[0]


async def _free_port() -> int:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


def _since(at: float) -> float:
    return time.perf_counter() - at


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    kb = next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]
    return int(kb) / 1024
