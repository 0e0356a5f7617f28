"""A program with two states that it saves by themselves, such as those of a GAN's two models."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.trainer.worlds import PATIENCE_S, ROOT, free_port
from tpujob_agent.protocol import Env

_TIED = "import ctypes, signal; ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
_PROGRAM = """
import os, sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tpujob_checkpoint import distributed
from tpujob_checkpoint.checkpointer import Checkpointer
from tpujob_checkpoint.settings import Settings

folder, more = sys.argv[1], int(sys.argv[2])
distributed.join(distributed.world_from(os.environ))
sharding = NamedSharding(Mesh(jax.devices(), "x"), PartitionSpec("x"))


def state(value):
    whole = np.full(8, value, np.float32)
    return {"w": jax.make_array_from_callback((8,), sharding, lambda part: whole[part])}


def checkpointer(name, last):
    settings = Settings(f"{folder}/{name}", interval="steps:1000000")
    return Checkpointer(settings, state(0), last=last, key=name)


def value(found):
    return {float(x) for shard in found["w"].addressable_shards for x in shard.data}


with checkpointer("a", 3 + more) as a, checkpointer("b", 5 + more) as b:
    both = {name: each.restore(lambda: state(0)) for name, each in (("a", a), ("b", b))}
    print({name: (step, value(found)) for name, (step, found) in both.items()}, flush=True)
    for step in range(1, 6 + more):
        for each, name, number, last in ((a, "a", 100, 3 + more), (b, "b", 200, 5 + more)):
            if both[name][0] < step <= last:
                each.after(step, state(number + step))
"""


def _run(folder: Path, more: int) -> list[str]:
    """What both processes of a world print."""
    address = f"127.0.0.1:{free_port()}"
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "trainer"),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        Env.JAX_COORDINATOR_ADDRESS: address,
        Env.JAX_NUM_PROCESSES: "2",
        "TPUJOB_THREAD_GUARD": "1",
    }
    command = [sys.executable, "-c", _TIED + _PROGRAM, str(folder), str(more)]
    world = [
        subprocess.Popen(
            command,
            env=env | {Env.JAX_PROCESS_ID: str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    try:
        told = [process.communicate(timeout=PATIENCE_S)[0] for process in world]
        assert [process.returncode for process in world] == [0, 0], "\n".join(told)
        return told
    finally:
        for process in world:
            process.kill()
            process.wait()


def test_each_restores_its_own_newest_step(tmp_path: Path) -> None:
    """Other steps, other keys, other values; and both save their last steps beside each other."""
    expected = [
        "{'a': (0, {0.0}), 'b': (0, {0.0})}",
        "{'a': (3, {103.0}), 'b': (5, {205.0})}",
        "{'a': (13, {113.0}), 'b': (15, {215.0})}",
    ]
    for more, line in zip((0, 10, 20), expected, strict=True):
        told = _run(tmp_path, more)
        assert all(line in text.splitlines() for text in told), "\n".join(told)
