"""Processes that save in both tiers until they are killed, forked like an agent would.

``python -m tests.trainer.victims DIRECTORY SEED COUNT`` prints one line of JSON for each:
what it restored, and which checkpoints there were when the one before had been killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import tpujob_checkpoint.orbax_files  # noqa: F401 - as an agent's fork server does before it forks
from tests.trainer.worlds import small_config
from tpujob_checkpoint.distributed import World
from tpujob_checkpoint.saving import Saver
from tpujob_checkpoint.schedule import Due
from tpujob_trainer import config as configs
from tpujob_trainer import topology
from tpujob_trainer.config import TrainerConfig
from tpujob_trainer.programs import Programs


class Rig:
    """A saver of one process on a few devices, and a state for every step."""

    def __init__(
        self, directory: Path, devices: int = 2, checkpoints: str = "", **changes: Any
    ) -> None:
        self.directory = directory
        self.config = self._config(checkpoints or str(self.checkpoints), changes)
        self.mesh = topology.mesh_of(self.config, jax.devices()[:devices], 1)
        self.programs = Programs(self.config, self.mesh, str(directory / "programs"))

    def _config(self, directory: str, changes: dict[str, Any]) -> TrainerConfig:
        return configs.load(small_config(checkpoint={"directory": directory}, **changes))

    @property
    def checkpoints(self) -> Path:
        """Directory of tier 2."""
        return self.directory / "checkpoints"

    @property
    def snapshots(self) -> Path:
        """Directory of tier 1."""
        return self.directory / "snapshots"

    def saver(self) -> Saver:
        """A saver as a fresh process has it."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        return Saver(
            self.config.checkpoint,
            World(),
            self.programs.of_state,
            last=self.config.steps,
            snapshot_dir=str(self.snapshots),
        )

    def state(self, step: int) -> Any:
        """The state after ``step``: every element of every leaf says which one it is of."""

        def filled(leaf: Any) -> Any:
            values = np.arange(leaf.size, dtype=np.float32) % 97 + step
            return jax.device_put(values.reshape(leaf.shape).astype(leaf.dtype), leaf.sharding)

        return jax.tree.map(filled, self.programs.state)

    def save(self, saver: Saver, step: int, *, durable: bool = True, local: bool = True) -> None:
        """Save the state of ``step`` and wait for it."""
        saver.save(step, self.state(step), Due(durable, local))
        saver.wait()

    def is_state_of(self, step: int, state: Any) -> bool:
        """Whether a state is, bit for bit, the one of ``step``."""
        pairs = zip(jax.tree.leaves(state), jax.tree.leaves(self.state(step)), strict=True)
        return all(bool((a == b).all()) for a, b in pairs)


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """No file can grow beyond 6000 bytes, as if the volume were full.

    As short as can be: it holds for the test report too, wherever that goes.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def _be_a_victim(directory: Path, report: int) -> None:
    rig = Rig(directory)
    saver = rig.saver()
    restored = saver.restore(None)
    is_good = restored.state is None or rig.is_state_of(restored.step, restored.state)
    for program in ("copy", "shares"):
        rig.programs.compile(
            program
        )  # compiled once and for all, or no victim would live to see a file
    os.write(report, json.dumps({"step": restored.step, "isGood": is_good}).encode())
    os.close(report)
    step = restored.step
    while True:
        step += 1
        rig.save(saver, step)


def main(directory: Path, seed: int, count: int) -> None:
    """Start, kill and start again."""
    moments = random.Random(seed)
    committed: list[int] = []
    for number in range(count):
        if number % 2:
            shutil.rmtree(directory / "snapshots", ignore_errors=True)  # a pod that was replaced
        read, write = os.pipe()
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _be_a_victim(directory, write)
        os.close(write)
        with os.fdopen(read) as report:
            answer = report.read()
        told = json.loads(answer) | {"committed": committed}
        # The moment is what is being tried: later where saves take longer, as starts do.
        time.sleep(moments.uniform(0.1, 1.0) * max(1.0, time.monotonic() - began))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        names = [path.name for path in (directory / "checkpoints").iterdir()]
        committed = [int(name) for name in names if name.isdecimal()]
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
