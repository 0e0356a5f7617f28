"""Start-up and recovery of the bundled trainer in a world of forks, without a cluster.

A process imports the trainer once and forks one trainer for each rank, like the
agent does. ``python -m bench.trainer_recovery --processes 4 --devices 4``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import re
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.figures import machine, show

_CONFIG = Path(__file__).parents[1] / "examples" / "trainer-demo.json"
_PATIENCE_S = 600.0


@dataclasses.dataclass
class _World:
    """One generation of forked trainers and the leader's output."""

    pids: list[int]
    log: Path
    started: float

    def losses(self) -> dict[int, float]:
        """Step → milliseconds, from the leader's lines."""
        lines = self.log.read_text(errors="replace").splitlines()
        found = [json.loads(x) for x in lines if x.startswith('{"step"') and x.endswith("}")]
        return {values["step"]: values["ms"] for values in found}

    def await_step(self, step: int) -> float:
        """Seconds since the start until the leader reports ``step`` or a later one."""
        _until(lambda: max(self.losses(), default=0) >= step, self)
        return time.monotonic() - self.started

    def cpu_s(self) -> float:
        """CPU seconds of all trainers so far: a figure that a busy machine does not spoil."""
        ticks = [
            Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in self.pids
        ]
        return sum(int(t[11]) + int(t[12]) for t in ticks) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """SIGKILL to a random trainer first, then to the survivors."""
        for pid in random.sample(self.pids, len(self.pids)):
            os.kill(pid, signal.SIGKILL)
        for pid in self.pids:
            os.waitpid(pid, 0)


def _until(condition: Callable[[], bool], world: _World) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"gave up waiting; the leader said:\n{world.log.read_text()[-3000:]}")
        time.sleep(0.002)


def _fork_world(config: dict[str, Any], directory: Path, options: argparse.Namespace) -> _World:
    address = f"127.0.0.1:{_free_port()}"
    number = len(list(directory.glob("world-*-0.log")))
    started = time.monotonic()
    pids = []
    for rank in range(options.processes):
        log = directory / f"world-{number}-{rank}.log"
        log.touch()
        pid = os.fork()
        if pid == 0:
            _become_trainer(rank, address, log, config, directory, options)
        pids.append(pid)
    return _World(pids, directory / f"world-{number}-0.log", started)


def _become_trainer(  # noqa: PLR0917 - a fork inherits everything anyway
    rank: int,
    address: str,
    log: Path,
    config: dict[str, Any],
    directory: Path,
    options: argparse.Namespace,
) -> None:
    output = os.open(log, os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ |= {
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_NUM_PROCESSES": str(options.processes),
        "JAX_PROCESS_ID": str(rank),
        "TPUJOB_CACHE_DIR": str(directory / f"programs-{rank}"),
        "TPUJOB_TRAINER_CONFIG": json.dumps(config),
    }
    from tpujob_trainer.__main__ import main  # noqa: PLC0415 - imported before the fork already

    main([])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run(options: argparse.Namespace) -> None:
    """Start cold, start warm, and recover ``--repeat`` times; print every figure."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    flags = f"--xla_force_host_platform_device_count={options.devices} {options.xla_flags}"
    os.environ["XLA_FLAGS"] = flags
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import tpujob_trainer.train  # noqa: F401, PLC0415 - what the fork server preloads

    threads = len(list(Path("/proc/self/task").iterdir()))
    print(f"{machine()}, load {os.getloadavg()[0]:.1f}, {threads} thread(s) after the imports")
    with tempfile.TemporaryDirectory(prefix="trainer-recovery-") as name:
        _measure(Path(name), options)


def _measure(directory: Path, options: argparse.Namespace) -> None:
    config = json.loads(Path(options.config).read_text())
    config["steps"] = 100_000  # the schedule of learning rates does not matter here
    config["data"]["directory"] = str(directory / "data")
    config["checkpoint"] = {"directory": str(directory / "checkpoints"), "interval": "steps:10"}
    world = _fork_world(config, directory, options)
    cold = world.await_step(1)
    cold_cpu_s = world.cpu_s()
    world.await_step(40)
    steps_ms = [ms for step, ms in world.losses().items() if step > 5]
    recovered, cpu_s = [], []
    for _ in range(options.repeat):
        newest = max(world.losses())
        killed = time.monotonic()
        world.kill()
        world = _fork_world(config, directory, options)
        world.started = killed
        recovered.append(world.await_step(1))
        cpu_s.append(world.cpu_s())
        print(_phases(world), flush=True)
        world.await_step(newest + 15)
    world.kill()
    show("cold start → first step", [cold], "s", 30.0)
    show("  CPU time of all trainers", [cold_cpu_s], "s")
    show("step, median with saves every 10", [statistics.median(steps_ms)], "ms", 150.0)
    show("kill -9 → first resumed step", recovered, "s", 2.0)
    show("  CPU time of all trainers", cpu_s, "s")


def _phases(world: _World) -> str:
    text = world.log.read_text(errors="replace")
    line = re.search(r"first step.*", text)
    return f"  {line.group() if line else ''}; load {os.getloadavg()[0]:.1f}"


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``python -m bench.trainer_recovery``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--devices", type=int, default=4, help="CPU devices a process")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--config", default=str(_CONFIG))
    parser.add_argument("--xla-flags", default="")
    run(parser.parse_args(argv))
    return 0


if __name__ == "__main__":
    sys.exit(main())
