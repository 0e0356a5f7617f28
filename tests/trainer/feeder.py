"""A process of a world that only reads batches, and prints the rows that its devices hold."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import numpy as np

from tpujob_data.manifest import read_manifest
from tpujob_trainer import sharding, topology
from tpujob_trainer.loader import Batches, Feed

STEPS = (1, 2, 7)
GLOBAL_BATCH = 8


def main(pack: str, address: str, processes: int, index: int) -> None:
    """Join the world and print ``[step, row, tokens]`` for every row on this process's devices."""
    if processes > 1:
        jax.distributed.initialize(address, processes, index)
    manifest = read_manifest(Path(pack))
    # Rows are on pairs of devices, which belong to two processes where each has one device.
    sizes = dict.fromkeys(sharding.AXES, 1) | {"fsdp": 2, "tensor": 2}
    mesh = topology.make_mesh(sizes, jax.devices())
    abstract = jax.ShapeDtypeStruct(
        (GLOBAL_BATCH, manifest.lengths[0] + 1),
        np.int32,
        sharding=sharding.named(mesh, "batch", None),
    )
    batches = Batches(manifest, seed=5, global_batch=GLOBAL_BATCH)
    feed = Feed(batches, {manifest.lengths[0]: abstract})
    for step in STEPS:
        _, rows = feed.batch(step)
        for shard in rows.addressable_shards:
            first = shard.index[0].start or 0
            for at, row in enumerate(np.asarray(shard.data)):
                print(json.dumps([step, first + at, row.tolist()]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
