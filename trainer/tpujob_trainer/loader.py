"""Batches as a pure function of (seed, step, global batch): any world reads the same tokens."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import queue
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
from array_record.python import array_record_module

from tpujob_data import DataError
from tpujob_data.manifest import Bucket, Manifest, find_packs
from tpujob_data.pack import Recipe, Say, ensure_pack, folder_of
from tpujob_data.rows import Ints, Rows
from tpujob_data.sources import STDLIB
from tpujob_trainer.config import TrainerConfig
from tpujob_trainer.continuation import Start

#: Batches made ahead of the step that takes them.
PREFETCH = 2
_FROM_THE_FIRST = Start()
#: Steps whose buckets are drawn at once, in some 30 ms.
_MAX_CYCLE = 4096
#: Reads exactly the rows asked for, in the calling thread: 2.5 times as fast as the default.
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"


def _without_packages(name: str) -> ModuleType:
    """An extension module, without running the packages it lies in.

    Where they are imported later, or were before, they and we have the same module: an extension
    must not be loaded twice.
    """
    if name not in sys.modules:
        top, *parts = name.split(".")
        package = find_spec(top)
        places = package.submodule_search_locations if package else None
        spec = PathFinder.find_spec(name, [str(Path(place, *parts[:-1])) for place in places or ()])
        if spec is None:
            raise ModuleNotFoundError(f"there is no module {name}: install Grain 0.2", name=name)
        sys.modules[name] = module_from_spec(spec)
    return sys.modules[name]


#: ``grain.experimental.index_shuffle``; to import all of Grain takes a third of a second.
index_shuffle: Callable[..., int] = _without_packages(
    "grain._src.python.experimental.index_shuffle.python.index_shuffle_module"
).index_shuffle


class Place(NamedTuple):
    """What a step trains on: rows ``first`` … ``first + size - 1`` of a bucket's endless order."""

    length: int
    first: int
    size: int


class Batches:
    """Random access to the batches of a run; a checkpoint needs to hold no position.

    A step takes all its rows from one bucket, as many as hold the tokens of ``global_batch``
    rows of the longest. Buckets come in random order, each as often as its share of rows says.
    """

    def __init__(
        self, manifest: Manifest, *, seed: int, global_batch: int, start: Start = _FROM_THE_FIRST
    ) -> None:
        """Look at the pack; nothing is read yet.

        Args:
            manifest: of the pack.
            seed: of the order.
            global_batch: rows of a step.
            start: where to count from; with rows of one length only.
        """
        self._start = start
        self._seed = seed
        self._streams = {b.length: _Stream(manifest, b, seed) for b in manifest.buckets}
        longest = max(manifest.lengths)
        self._counts = {n: global_batch * longest // n for n in self._streams}
        # Steps of each bucket in one cycle: an epoch, or a part of it.
        steps = {n: stream.rows / self._counts[n] for n, stream in self._streams.items()}
        scale = min(1.0, _MAX_CYCLE / sum(steps.values()))
        self._shares = {n: max(1, round(scale * count)) for n, count in steps.items()}

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of rows that occur, shortest first."""
        return tuple(self._streams)

    def place(self, step: int) -> Place:
        """Which rows ``step`` trains on; steps count from 1."""
        if len(self._shares) == 1:
            length, count = next(iter(self._counts.items()))
            return Place(length, self._start.first_row(step, count), count)
        cycle, at = divmod(step - 1, sum(self._shares.values()))
        order, rank = _order(self._seed, cycle, tuple(self._shares.items()))
        length, before = order[at], rank[at]
        count = self._counts[length]
        return Place(length, (cycle * self._shares[length] + before) * count, count)

    def rows(self, step: int, which: Sequence[int]) -> Rows:
        """Some rows of the batch that ``step`` trains on."""
        place = self.place(step)
        return self._streams[place.length].read([place.first + row for row in which])


@functools.lru_cache(maxsize=2)
def _order(
    seed: int, cycle: int, shares: tuple[tuple[int, int], ...]
) -> tuple[list[int], list[int]]:
    """The buckets of a cycle's steps, and how often each bucket came before in the cycle."""
    bounds = list(itertools.accumulate(share for _, share in shares))
    key = _key(seed, cycle, 0)
    total, counts, order, rank = bounds[-1], dict.fromkeys(bounds, 0), [], []
    for at in range(total):
        place = index_shuffle(at, max_index=total - 1, seed=key, rounds=4)
        bucket = bisect_right(bounds, place)
        order.append(shares[bucket][0])
        rank.append(counts[bounds[bucket]])
        counts[bounds[bucket]] += 1
    return order, rank


def _key(seed: int, epoch: int, length: int) -> int:
    """A key of the shuffle: no two epochs, seeds or buckets share an order."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/{length}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


class _Stream:
    """The rows of one bucket, epoch after epoch, each in an order of its own."""

    def __init__(self, manifest: Manifest, bucket: Bucket, seed: int) -> None:
        self.rows = bucket.rows
        self._seed, self._length = seed, bucket.length
        self._layout = manifest.layout(bucket.length)
        self._files = [str(manifest.folder / shard.file) for shard in bucket.shards]
        self._bounds = list(itertools.accumulate(shard.rows for shard in bucket.shards))
        self._readers: dict[int, Any] = {}

    def read(self, places: Sequence[int]) -> Rows:
        """Rows at places of the endless order."""
        records: list[bytes] = [b""] * len(places)
        wanted: dict[int, list[tuple[int, int]]] = {}
        for target, place in enumerate(places):
            epoch, at = divmod(place, self.rows)
            key = _key(self._seed, epoch, self._length)
            row = index_shuffle(at, max_index=self.rows - 1, seed=key, rounds=4)
            file = bisect_right(self._bounds, row)
            start = self._bounds[file - 1] if file else 0
            wanted.setdefault(file, []).append((target, row - start))
        for file, pairs in wanted.items():
            found = self._read(file, [row for _, row in pairs])
            for (target, _), record in zip(pairs, found, strict=True):
                records[target] = record
        return self._layout.decode(records)

    def _read(self, file: int, rows: list[int]) -> Sequence[bytes]:
        try:
            if file not in self._readers:
                self._readers[file] = array_record_module.ArrayRecordReader(
                    self._files[file], _READER_OPTIONS
                )
            found: Sequence[bytes] = self._readers[file].read(rows)
        except (RuntimeError, IndexError, ValueError) as error:
            raise DataError(
                f"{self._files[file]} cannot be read: {error}; see tpujob-data verify"
            ) from error
        return found


class Batch(NamedTuple):
    """A batch on the devices."""

    step: int
    length: int
    rows: Any  # tokens, or Rows of tokens and segments: as the program wants them
    wait_s: float  # for which the loop waited


class Feed:
    """Puts batches on this process's devices; each process reads only the rows of its own.

    Args:
        abstract: for each length what the program takes: the shape of tokens, or ``Rows`` of
            the shapes of tokens and segments; with their sharding.
    """

    def __init__(self, batches: Batches, abstract: Mapping[int, Any]) -> None:
        self._batches, self._abstract = batches, abstract
        self._splits = {n: _Split(jax.tree.leaves(rows)[0]) for n, rows in abstract.items()}

    def batch(self, step: int) -> tuple[int, Any]:
        """The length of the rows of ``step``, and the rows."""
        length = self._batches.place(step).length
        split = self._splits[length]
        rows = self._batches.rows(step, split.rows)
        if isinstance(self._abstract[length], Rows):
            return length, Rows(split.put(rows.tokens), split.put(rows.segments))
        return length, split.put(rows.tokens)


class _Split:
    """Which rows this process needs, and how they go to its devices in one transfer."""

    def __init__(self, abstract: jax.ShapeDtypeStruct) -> None:
        self._shape, self._sharding = abstract.shape, abstract.sharding
        indices = self._sharding.addressable_devices_indices_map(self._shape)
        spans = [index[0].indices(self._shape[0])[:2] for index in indices.values()]
        self.rows = sorted({row for span in spans for row in range(*span)})
        place = {row: at for at, row in enumerate(self.rows)}
        self._devices = list(indices)
        self._parts = [
            (slice(place[start], place[start] + stop - start), *index[1:])
            for (start, stop), index in zip(spans, indices.values(), strict=True)
        ]

    def put(self, rows: Ints) -> jax.Array:
        """The array over all devices of all processes."""
        if rows.shape[1:] != self._shape[1:]:
            raise ValueError(f"rows of shape {rows.shape} for a batch of shape {self._shape}")
        shards = jax.device_put([rows[part] for part in self._parts], self._devices)
        return jax.make_array_from_single_device_arrays(self._shape, self._sharding, shards)


class Prefetcher:
    """Makes batches in a thread, ahead of the loop that consumes them."""

    def __init__(self, feed: Feed, steps: Sequence[int]) -> None:
        self._feed, self._steps = feed, steps
        self._ready: queue.Queue[tuple[int, Any] | Exception] = queue.Queue(maxsize=PREFETCH)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="prefetch", daemon=True)
        self._thread.start()

    def _produce(self) -> None:
        try:
            for step in self._steps:
                self._put(self._feed.batch(step))
                if self._stopped.is_set():
                    return
        except Exception as error:  # noqa: BLE001 - raised again in the loop's thread
            self._put(error)

    def _put(self, item: tuple[int, Any] | Exception) -> None:
        while not self._stopped.is_set():
            with contextlib.suppress(queue.Full):
                self._ready.put(item, timeout=0.2)
                return

    def __iter__(self) -> Iterator[Batch]:
        """The batches of all steps, in order."""
        for step in self._steps:
            started = time.perf_counter()
            item = self._ready.get()
            if isinstance(item, Exception):
                raise item
            yield Batch(step, *item, time.perf_counter() - started)

    def stop(self) -> None:
        """End the thread; batches made ahead are dropped."""
        self._stopped.set()
        self._thread.join(timeout=10)


def prepare(config: TrainerConfig, say: Say) -> Manifest:
    """The pack that a configuration trains on, made now if ``data.source`` is text.

    Raises:
        DataError: there is no text, or no pack that fits the model.
    """
    source, lengths = config.data.source, config.lengths
    packs = find_packs(Path(source)) if source != STDLIB else []
    if packs:
        return _fitting(packs, source, lengths, config.model.vocab)
    recipe = Recipe(source, lengths, kind="text", max_bytes=config.data.max_bytes)
    return ensure_pack(recipe, Path(config.data.directory) / recipe.name, say)


def _fitting(
    packs: Sequence[Manifest], source: str, lengths: tuple[int, ...], vocab: int
) -> Manifest:
    pack = next((pack for pack in packs if pack.lengths == lengths), None)
    if pack is None:
        held = ", ".join(f"{folder_of(p.lengths)} ({p.folder.name})" for p in packs)
        raise DataError(
            f"{source} holds no pack of length {folder_of(lengths)}; there are {held}: change "
            "sequenceLength or data.buckets, or make one with tpujob-data pack"
        )
    if pack.vocab > vocab:
        raise DataError(
            f"{pack.folder} holds tokens below {pack.vocab}, but model.vocab is {vocab}: set "
            f"model.vocab to at least {pack.vocab}, or pack with another tokenizer"
        )
    return pack
