"""Batches as a pure function of (seed, step, global batch): any world reads the same tokens."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np
import numpy.typing as npt
from grain import MapDataset, sources

from tpujob_trainer.data.pack import Manifest

#: Batches made ahead of the step that takes them.
PREFETCH = 2

Rows = npt.NDArray[np.int32]


class Batches:
    """Random access to the batches of a run; a checkpoint needs to hold no position."""

    def __init__(self, manifest: Manifest, *, seed: int, global_batch: int) -> None:
        source = sources.ArrayRecordDataSource(str(manifest.path))
        # Grain shuffles by a keyed permutation of the index, anew in every epoch.
        self._rows = MapDataset.source(source).seed(seed % 2**32).shuffle().repeat()
        self._global_batch = global_batch
        self._length = manifest.sequence_length + 1

    def rows(self, step: int, which: Sequence[int]) -> Rows:
        """Some rows of the batch that ``step`` trains on; steps count from 1.

        Returns:
            int32 tokens, len(which) x (sequence length + 1).
        """
        first = (step - 1) * self._global_batch
        records = [np.frombuffer(self._rows[first + row], np.uint8) for row in which]
        return np.stack(records).astype(np.int32)

    def on_devices(self, step: int, abstract: jax.ShapeDtypeStruct) -> jax.Array:
        """The batch of ``step``; this process reads only what its own devices hold."""
        made: dict[tuple[int, int], Rows] = {}

        def shard(index: tuple[slice, ...] | None) -> Rows:
            start, stop, _ = (index or (slice(None),))[0].indices(self._global_batch)
            if (start, stop) not in made:
                made[start, stop] = self.rows(step, range(start, stop))
            return made[start, stop]

        return jax.make_array_from_callback(abstract.shape, abstract.sharding, shard)


class Prefetcher:
    """Makes batches in a thread, ahead of the loop that consumes them."""

    def __init__(
        self, batches: Batches, abstract: jax.ShapeDtypeStruct, steps: Sequence[int]
    ) -> None:
        self._batches, self._abstract, self._steps = batches, abstract, steps
        self._ready: queue.Queue[jax.Array | Exception] = queue.Queue(maxsize=PREFETCH)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="prefetch", daemon=True)
        self._thread.start()

    def _produce(self) -> None:
        try:
            for step in self._steps:
                self._put(self._batches.on_devices(step, self._abstract))
                if self._stopped.is_set():
                    return
        except Exception as error:  # noqa: BLE001 - raised again in the loop's thread
            self._put(error)

    def _put(self, item: jax.Array | Exception) -> None:
        while not self._stopped.is_set():
            with contextlib.suppress(queue.Full):
                self._ready.put(item, timeout=0.2)
                return

    def __iter__(self) -> Iterator[tuple[int, jax.Array, float]]:
        """Steps with their batch and the seconds waited for it."""
        for step in self._steps:
            started = time.perf_counter()
            item = self._ready.get()
            if isinstance(item, Exception):
                raise item
            yield step, item, time.perf_counter() - started

    def stop(self) -> None:
        """End the thread; batches made ahead are dropped."""
        self._stopped.set()
        self._thread.join(timeout=10)
