"""What a save costs the loop, and what a crash costs the run, without a cluster.

A process imports the trainer once and forks one trainer for each rank, like the agent
does. ``python -m bench.checkpoint --processes 2 --devices 2``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from bench.figures import machine, show
from tpujob.record import RecordReader
from tpujob_agent.protocol import Env

_PATIENCE_S = 600.0
_SAVES = 5
#: Tier 1's default interval, for the bar on lost steps.
_SNAPSHOT_S = 2.0
#: fp32 weights and two moments: 312 MiB, the size of facts' and of stock Orbax's figures.
_LARGE = {"dModel": 512, "layers": 6, "heads": 8, "kvHeads": 8, "dFF": 1408, "vocab": 7808}
#: 62 MiB.
_SMALL = {"dModel": 256, "layers": 4, "heads": 4, "kvHeads": 4, "dFF": 704, "vocab": 4096}

#: A trainer as it starts in the image, which lacks this library. Orbax imports it where it is
#: installed, as among the development packages, and that takes as long as half of JAX.
_STARTED = """
import runpy, sys
sys.modules["google.cloud.logging"] = None
runpy.run_module("tpujob_trainer", run_name="__main__", alter_sys=True)
"""


@dataclasses.dataclass
class _World:
    """One generation of trainers, the leader's output and the ranks' heartbeat records."""

    pids: list[int]
    log: Path
    records: list[RecordReader]
    started: float

    def steps(self, of: str = "ms") -> dict[int, float]:
        """Step → milliseconds, from the leader's lines."""
        lines = self.log.read_text(errors="replace").splitlines()
        found = [json.loads(x) for x in lines if x.startswith('{"step"') and x.endswith("}")]
        return {values["step"]: values[of] for values in found}

    def newest(self) -> int:
        """The newest finished step."""
        return max(self.steps(), default=0)

    def await_step(self, step: int) -> float:
        """Seconds since the start until the leader reports ``step`` or a later one."""
        _until(lambda: self.newest() >= step, self)
        return time.monotonic() - self.started

    def kill(self) -> None:
        """SIGKILL to a random trainer first, then to the survivors."""
        for pid in random.sample(self.pids, len(self.pids)):
            os.kill(pid, signal.SIGKILL)
        for pid in self.pids:
            os.waitpid(pid, 0)


def _until(condition: Callable[[], bool], world: _World) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        ended = os.waitid(os.P_PID, world.pids[0], os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended or time.monotonic() > deadline:
            raise SystemExit(f"gave up waiting; the leader said:\n{world.log.read_text()[-3000:]}")
        time.sleep(0.002)


@dataclasses.dataclass(frozen=True)
class _Bench:
    """Where the worlds of one configuration live, and how they are started."""

    directory: Path
    memory: Path
    config: dict[str, Any]
    options: argparse.Namespace

    def start(self, become: Callable[[], object] | None) -> _World:
        """Start a world: forks that run ``become``, or fresh processes of the trainer."""
        address = f"127.0.0.1:{_free_port()}"
        number = len(list(self.directory.glob("world-*-0.log")))
        started, pids, records = time.monotonic(), [], []
        for rank in range(self.options.processes):
            log = self.directory / f"world-{number}-{rank}.log"
            log.touch()
            record = self.directory / f"record-{rank}"
            records.append(RecordReader(record, number))
            env = self._environment(rank, address) | {Env.RECORD: str(record)}
            pids.append(_fork(env, log, become) if become else _spawn(env, log))
        return _World(pids, self.directory / f"world-{number}-0.log", records, started)

    def _environment(self, rank: int, address: str) -> dict[str, str]:
        return {
            Env.JAX_COORDINATOR_ADDRESS: address,
            Env.JAX_NUM_PROCESSES: str(self.options.processes),
            Env.JAX_PROCESS_ID: str(rank),
            Env.CACHE_DIR: str(self.directory / f"programs-{rank}"),
            Env.SNAPSHOT_DIR: str(self.memory / str(rank)),
            Env.TRAINER_CONFIG: json.dumps(self.config),
        }


def _fork(env: dict[str, str], log: Path, become: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        _become(env, log, become)
    return pid


def _become(env: dict[str, str], log: Path, become: Callable[[], object]) -> NoReturn:
    output = os.open(log, os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ |= env
    try:
        become()
    except BaseException as error:  # noqa: BLE001 - a fork must never return into the bench
        print(f"{type(error).__name__}: {error}", flush=True)
    os._exit(1)


def _spawn(env: dict[str, str], log: Path) -> int:
    with log.open("wb") as output:
        command = [sys.executable, "-c", _STARTED]
        process = subprocess.Popen(command, env=os.environ | env, stdout=output, stderr=output)
    return process.pid


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _trainer() -> None:
    from tpujob_trainer.__main__ import main  # noqa: PLC0415 - imported before the fork already

    main([])


def _stock() -> None:
    """Train as ours does and save as Orbax's documentation says; prints what each save blocked."""
    import jax  # noqa: PLC0415 - as above
    from orbax.checkpoint import v1 as ocp  # noqa: PLC0415

    from tpujob_checkpoint import distributed  # noqa: PLC0415
    from tpujob_trainer import topology  # noqa: PLC0415
    from tpujob_trainer.__main__ import read_config  # noqa: PLC0415
    from tpujob_trainer.programs import Programs  # noqa: PLC0415

    config = read_config("", os.environ)
    distributed.join(distributed.world_from(os.environ))
    programs = Programs(config, topology.mesh_of(config, jax.devices(), 1), "")
    state = programs.init().call()
    copy = programs.of_state.copy()
    for number in range(1, _SAVES + 2):
        state = jax.block_until_ready(copy(state))
        started = time.perf_counter()
        saving = ocp.save_async(f"{config.checkpoint.directory}/stock/{number}", state)
        blocked_s = time.perf_counter() - started
        saving.result()
        print(json.dumps({"step": number, "ms": blocked_s * 1000}), flush=True)
    signal.pause()


def _saves(bench: _Bench) -> None:
    """What a save holds up the loop, beside stock Orbax on the same state."""
    every = int(bench.config["checkpoint"]["interval"].removeprefix("steps:"))
    ours = bench.start(_trainer)
    _until(lambda: ours.records[0].read().committed_step >= (_SAVES + 1) * every, ours)
    steps, stalls = ours.steps(), ours.steps("saveBlockedMs")
    ours.kill()
    # The first one of each tier still imports and compiles.
    steps = {step: ms for step, ms in steps.items() if step > every}
    blocked = [stalls[step] for step in steps if stalls[step]]
    # A save at step n is paid for in step n + 1, if at all.
    after = [ms for step, ms in steps.items() if step % every == 1]
    others = [ms for step, ms in steps.items() if step % every in {0, every - 1}]
    stock = bench.start(_stock)
    stock.await_step(_SAVES + 1)
    theirs = list(stock.steps().values())[1:]  # the first one compiles
    stock.kill()
    show("save-blocked, 312 MiB, a save of either tier", blocked, "ms", 60.0)
    show(
        "  step after a save, beyond the median",
        [m - statistics.median(others) for m in after],
        "ms",
    )
    show("  stock Orbax v1 async, same state", theirs, "ms")
    if statistics.median(blocked):
        ratio = statistics.median(theirs) / statistics.median(blocked)
        print(f"  stock ÷ ours {ratio:.1f}", flush=True)


def _recovery(bench: _Bench, repeat: int) -> None:
    """Start-up with everything compiled, and kill -9 → first resumed step from tier 1."""
    world = bench.start(_trainer)
    cold = world.await_step(1)
    recovered, lost_s = [], []
    for kill in range(repeat):
        reached = world.newest()
        world.await_step(reached + 1)
        # A few snapshots, and then evenly spread over the time between two of them.
        _run_for((3 + kill / repeat) * _SNAPSHOT_S, world)
        newest, killed = world.newest(), time.monotonic()
        pace_s = statistics.median(world.steps().values()) / 1000
        world.kill()
        world = bench.start(_trainer)
        world.started = killed
        recovered.append(world.await_step(1))
        resumed = min(world.steps())
        lost_s.append((newest - resumed + 1) * pace_s)
        print(_phases(world), flush=True)
    world.kill()
    warm = []
    for _ in range(repeat):
        world = bench.start(None)
        warm.append(world.await_step(1))
        world.kill()
    show("cold start → first step (forked)", [cold], "s")
    show("process start → first step, warm", warm, "s", 3.0)
    show("kill -9 → first resumed step, tier 1, fork", recovered, "s", 1.2)
    show("  training lost", lost_s, "s", _SNAPSHOT_S)


def _run_for(seconds: float, world: _World) -> None:
    end = time.monotonic() + seconds
    _until(lambda: time.monotonic() > end, world)


def _phases(world: _World) -> str:
    text = world.log.read_text(errors="replace")
    found = re.findall(r"restored step.*|first step.*", text)
    return f"  {'; '.join(found)}; load {os.getloadavg()[0]:.1f}"


def _bench(
    directory: Path, memory: Path, model: dict[str, int], interval: str, options: argparse.Namespace
) -> _Bench:
    directory.mkdir()
    config = {
        "model": model,
        "mesh": {"tensor": 1},
        "globalBatch": 4,
        "sequenceLength": 32,
        "steps": 1_000_000,
        "data": {"directory": str(directory / "data"), "maxBytes": 200_000},
        "checkpoint": {
            "directory": str(directory / "checkpoints"),
            "interval": interval,
            "keep": 2,
            "snapshotSeconds": _SNAPSHOT_S,
        },
    }
    return _Bench(directory, memory, config, options)


def run(options: argparse.Namespace) -> None:
    """Measure and print every figure."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={options.devices}"
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import tpujob_checkpoint.orbax_files  # noqa: F401, PLC0415 - what the fork server preloads
    import tpujob_trainer.train  # noqa: F401, PLC0415

    threads = len(list(Path("/proc/self/task").iterdir()))
    print(f"{machine()}, {threads} thread(s) after the imports", flush=True)
    memory = Path(tempfile.mkdtemp(prefix="bench-checkpoint-", dir="/dev/shm"))
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as name:
        try:
            _saves(_bench(Path(name) / "saves", memory / "saves", _LARGE, "steps:4", options))
            small = _bench(Path(name) / "small", memory / "small", _SMALL, "steps:1000000", options)
            _recovery(small, options.repeat)
        finally:
            shutil.rmtree(memory)


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``python -m bench.checkpoint``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--devices", type=int, default=2, help="CPU devices a process")
    parser.add_argument("--repeat", type=int, default=5)
    run(parser.parse_args(argv))
    return 0


if __name__ == "__main__":
    sys.exit(main())
