"""Real JAX over two processes, forked from agents that have imported it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.agent.rig import rig
from tpujob_agent.protocol import Env, EventKind

PROGRAM = """
import os
import numpy as np
import jax
import tpujob
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_enable_preemption_service", False)
tpujob.phase("init")
jax.distributed.initialize(
    os.environ["JAX_COORDINATOR_ADDRESS"],
    int(os.environ["JAX_NUM_PROCESSES"]),
    int(os.environ["JAX_PROCESS_ID"]),
    heartbeat_timeout_seconds=10,
)
mesh = Mesh(np.array(jax.devices()), ("x",))
count = len(jax.devices())
tpujob.phase("compile")
total = jax.jit(lambda a: a.sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))
sharding = NamedSharding(mesh, PartitionSpec("x"))
ones = jax.make_array_from_callback((count,), sharding, lambda _: np.ones(1, np.float32))
tpujob.restored(0)
for step in range(1, 1_000_000):
    tpujob.step(step, loss=float(total(ones)))
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_back_from_the_fork_server(tmp_path: Path, rank: int) -> None:
    """A sum over both processes goes on in generation 2, whichever rank was killed."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with rig(tmp_path, slices=1, hosts=2) as job:
        env = {Env.PRELOAD: "jax,numpy", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
        job.start([sys.executable, str(program)], env=env)
        job.wait_event(EventKind.PROGRESS)
        os.kill(job.trainer_pid(0, rank), signal.SIGKILL)
        progress = job.wait_event(EventKind.PROGRESS, generation=2, count=2)
        (loss,) = job.events(EventKind.LOSS)
        assert (loss["data"]["host"], loss["data"]["signal"]) == (rank, 9)
        assert progress["data"]["loss"] == 2.0
        assert "have threads" not in job.agents[0, 0].text
