"""Real trainer processes for tests: worlds of one or more, started like an agent would."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tpujob_agent.protocol import Env

ROOT = Path(__file__).parents[2]
#: A loaded machine with two cores compiles slowly; no test waits this long when all is well.
PATIENCE_S = 240.0
#: A killed test run leaves no trainer behind (PR_SET_PDEATHSIG is 1). Not by preexec_fn, which
#: forks, and JAX warns of forks.
_TIED_TRAINER = """
import ctypes, runpy, signal
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
runpy.run_module("tpujob_trainer", run_name="__main__", alter_sys=True)
"""

#: The smallest model that still has two heads to a group and every kind of weight.
SMALL_MODEL = {"dModel": 32, "layers": 1, "heads": 4, "kvHeads": 2, "dFF": 64}


def small_config(**changes: Any) -> dict[str, Any]:
    """A configuration whose runs take seconds; sections are merged, not replaced."""
    config: dict[str, Any] = {
        "model": dict(SMALL_MODEL),
        "mesh": {"slice": 1, "fsdp": -1, "tensor": 2},
        "globalBatch": 4,
        "sequenceLength": 32,
        "steps": 12,
        "seed": 7,
        "data": {"maxBytes": 200_000},
        "optimizer": {"warmupSteps": 2},
        "checkpoint": {"interval": "steps:4", "keep": 3},
    }
    for key, value in changes.items():
        merged = {**config.get(key, {}), **value} if isinstance(value, dict) else value
        config[key] = merged
    return config


@dataclasses.dataclass(frozen=True)
class Trainer:
    """One trainer process and the file that collects what it prints."""

    process: subprocess.Popen[bytes]
    log: Path

    def output(self) -> str:
        """All it has printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def losses(self) -> dict[int, float]:
        """Losses by step as printed in full."""
        return losses_in(self.output())

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(timeout=PATIENCE_S)


def losses_in(output: str) -> dict[int, float]:
    """Losses by step from a trainer's output; lines that are cut off do not count."""
    losses = {}
    for line in output.splitlines():
        if line.startswith('{"step"') and line.endswith("}"):
            values = json.loads(line)
            losses[values["step"]] = values["loss"]
    return losses


class Launcher:
    """Starts worlds of trainers whose checkpoints live below one test's directory."""

    def __init__(self, directory: Path, shared: Path) -> None:
        self.checkpoints = directory / "checkpoints"
        self._directory, self._shared = directory, shared
        self._trainers: list[Trainer] = []

    def start(
        self,
        config: dict[str, Any],
        *,
        processes: int = 1,
        devices: int = 4,
        env: dict[str, str] | None = None,
        snapshots: Path | None = None,
        prefix: tuple[str, ...] = (),
        arguments: tuple[str, ...] = (),
    ) -> list[Trainer]:
        """Start one world; process 0 comes first.

        Args:
            config: as a user would write it.
            processes: how many trainers.
            devices: CPU devices of each.
            env: more variables.
            snapshots: memory of all pods; each process gets a directory of its own in it.
            prefix: a command that runs the trainers.
            arguments: of the trainers' command line.
        """
        config = {**config}
        config["checkpoint"] = {"directory": str(self.checkpoints), **config["checkpoint"]}
        config["data"] = {"directory": str(self._shared / "data"), **config["data"]}
        address = f"127.0.0.1:{free_port()}"
        common = self._environment(config, devices) | (env or {})
        world = []
        for index in range(processes):
            own = common | _place(index, processes, address)
            if snapshots:
                own[Env.SNAPSHOT_DIR] = str(snapshots / str(index))
            world.append(self._spawn(index, own, prefix, arguments))
        self._trainers += world
        return world

    def run(self, config: dict[str, Any], **kwargs: Any) -> Trainer:
        """Run one world to its end; returns process 0, whose exit code is the world's."""
        world = self.start(config, **kwargs)
        for trainer in world:
            trainer.wait()
        return world[0]

    def _environment(self, config: dict[str, Any], devices: int) -> dict[str, str]:
        inherited = {n: value for n, value in os.environ.items() if not n.startswith("TPUJOB_")}
        return inherited | {
            "PYTHONPATH": str(ROOT / "trainer"),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            # One cache for all processes: its keys tell them apart.
            Env.CACHE_DIR: str(self._shared / "programs"),
            Env.TRAINER_CONFIG: json.dumps(config),
            "TPUJOB_THREAD_GUARD": "1",
        }

    def _spawn(
        self,
        index: int,
        env: dict[str, str],
        prefix: tuple[str, ...],
        arguments: tuple[str, ...],
    ) -> Trainer:
        log = self._directory / f"trainer-{len(self._trainers)}-{index}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*prefix, sys.executable, "-c", _TIED_TRAINER, *arguments],
                env=env,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return Trainer(process, log)

    def kill_all(self) -> None:
        """SIGKILL to whatever still runs."""
        for trainer in self._trainers:
            kill(trainer)


def _place(index: int, processes: int, address: str) -> dict[str, str]:
    if processes == 1:
        return {}
    return {
        Env.JAX_COORDINATOR_ADDRESS: address,
        Env.JAX_NUM_PROCESSES: str(processes),
        Env.JAX_PROCESS_ID: str(index),
    }


def kill(trainer: Trainer) -> None:
    """SIGKILL, and wait until the process is gone."""
    with contextlib.suppress(ProcessLookupError):
        trainer.process.send_signal(signal.SIGKILL)
    trainer.process.wait()


def free_port() -> int:
    """A TCP port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll a condition until it holds.

    Raises:
        TimeoutError: it did not within PATIENCE_S; says what was awaited.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE_S:.0f} s for {what}")
        time.sleep(0.005)
