"""What input and telemetry cost a training step.

Input: the loop's wait for batches of 8 x 2048 tokens beside steps of 10 ms in which the host
has nothing to do, as with an accelerator; and the time to make a batch, by its parts.
Telemetry: one call of ``tpujob.step`` as the loop makes it.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

import tpujob
from bench.figures import machine, show
from tpujob.record import RecordReader
from tpujob_agent.protocol import Env
from tpujob_data.pack import Recipe, ensure_pack
from tpujob_data.rows import Rows
from tpujob_trainer import sharding, topology
from tpujob_trainer.loader import Batches, Feed, Prefetcher

_ROWS, _LENGTH, _STEP_S, _STEPS = 8, 2048, 0.010, 300
_CALLS = 20_000


def run_input(repeat: int) -> None:
    """Print the wait for input as a share of a step, and what a batch costs."""
    print(machine())
    with tempfile.TemporaryDirectory() as directory:
        recipe = Recipe("stdlib", (_LENGTH,), max_bytes=20_000_000)
        pack = ensure_pack(recipe, Path(directory) / "pack", print)
        batches = Batches(pack, seed=0, global_batch=_ROWS)
        mesh = topology.make_mesh(dict.fromkeys(sharding.AXES, 1), jax.devices()[:1])
        split = sharding.named(mesh, "batch", None)
        tokens = jax.ShapeDtypeStruct((_ROWS, _LENGTH + 1), np.int32, sharding=split)
        for name, abstract in (("tokens", tokens), ("tokens and segments", Rows(tokens, tokens))):
            feed = Feed(batches, {_LENGTH: abstract})
            made = [_milliseconds(feed.batch) for _ in range(repeat)]
            show(f"a batch of {name} onto the device", made, "ms")
            waits = [100 * _wait_share(feed) for _ in range(repeat)]
            show(f"input wait, {name}", waits, "% of 10 ms", bar=1)
        read = [_milliseconds(lambda n: batches.rows(n, range(_ROWS))) for _ in range(repeat)]
        show("of it, reading and decoding", read, "ms")


def _milliseconds(make: Callable[[int], object]) -> float:
    def one(step: int) -> float:
        started = time.perf_counter()
        make(step)
        return time.perf_counter() - started

    return 1000 * statistics.median(one(step) for step in range(1, _STEPS + 1))


def _wait_share(feed: Feed) -> float:
    """Mean wait of the steps after the first ones, by the length of a step."""
    prefetcher = Prefetcher(feed, range(1, _STEPS + 1))
    waits = []
    for batch in prefetcher:
        waits.append(batch.wait_s)
        jax.block_until_ready(batch.rows)
        time.sleep(_STEP_S)  # stands for the device's work, which leaves the host idle
    return statistics.mean(waits[10:]) / _STEP_S


def run_telemetry(repeat: int) -> None:
    """Print what one heartbeat costs."""
    print(machine())
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "record"
        RecordReader(path, generation=1)
        os.environ[Env.RECORD] = str(path)
        costs = []
        for turn in range(repeat):
            first = turn * _CALLS
            started = time.perf_counter()
            for step in range(first, first + _CALLS):
                tpujob.step(step, loss=1.0, tokens=16_384, input_wait_s=1e-6, arrived_at=1e9)
            costs.append((time.perf_counter() - started) / _CALLS * 1e6)
        show("heartbeat: one call of tpujob.step", costs, "us", bar=2)
