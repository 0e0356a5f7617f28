"""Both tiers together: takes snapshots of the state, has them written, restores the newest.

The loop pays for a copy on the devices and nothing else: digests, transfers and files are
the business of threads. None of their work is a collective on the devices, whose order
among the processes only the loop can keep.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tpujob_trainer import digest, fields, snapshots
from tpujob_trainer.checkpoint import Checkpoints, leaf_names
from tpujob_trainer.config import TrainerConfig
from tpujob_trainer.distributed import World, agree
from tpujob_trainer.programs import Programs
from tpujob_trainer.schedule import Due
from tpujob_trainer.snapshots import Bytes, SnapshotBadError, SnapshotStore
from tpujob_trainer.step import Metrics, State
from tpujob_trainer.telemetry import say


@dataclasses.dataclass(frozen=True, slots=True)
class Restored:
    """State of the newest good step; step 0 without a state is a fresh start."""

    step: int
    state: Any


@dataclasses.dataclass(slots=True)
class _Taken:
    """A state that nobody changes any more, with its digests and the metrics of its step."""

    step: int
    state: State
    shares: Future[jax.Array]
    metrics: Metrics

    def hand_over(self) -> State:
        """The state, which is no longer held here: its memory is needed for the next one."""
        state, self.state = self.state, {}
        return state

    def fault(self) -> str:
        """Why it must not be kept; waits for the step."""
        values = {name: float(np.asarray(value)) for name, value in self.metrics.items()}
        bad = [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
        return ", ".join(bad)


class Saver:
    """Saves and restores the state of one process. All processes make every call alike."""

    def __init__(
        self, config: TrainerConfig, world: World, programs: Programs, snapshot_dir: str
    ) -> None:
        self._world, self._programs = world, programs
        self._checkpoints = Checkpoints(
            config.checkpoint.directory,
            keep=config.checkpoint.keep,
            world=world,
            abstract=programs.state,
            digest=lambda state: programs.digest().call(state),
        )
        # Loaded in a thread: a start does not wait for what the first save needs.
        self._thread = ThreadPoolExecutor(1, "digest")
        self._copy = self._thread.submit(lambda: programs.copy().call)
        self._shares = self._thread.submit(lambda: programs.shares().call)
        self._memory = MemoryTier(config, world, programs, self._shares, snapshot_dir)
        self._has_room: bool | None = None
        self._newest: Callable[[], jax.Array | None] = lambda: None  # a copy on the devices
        self._durable, self._local = _Background("checkpoint"), _Background("snapshot")
        self.local_cost_s = 0.0

    def restore(self, ceiling: int | None) -> Restored:
        """The newest state that is intact on every process, at most of step ``ceiling``.

        Raises:
            CheckpointBadError: there are checkpoints, but no good one.
            CheckpointUnusableError: they belong to a model of other sizes.
        """
        listing = self._checkpoints.listing(ceiling)
        in_memory = self._memory.common_steps(ceiling)
        for step, is_local in newest_first(in_memory, listing.steps):
            tier = self._memory if is_local else self._checkpoints
            state = tier.restore(step)
            if state is not None:
                self._memory.discard_above(step)
                return Restored(step, state)
        self._memory.discard_above(0)
        if listing.steps or listing.quarantined:
            raise self._checkpoints.all_bad(listing)
        return Restored(0, None)

    def save(self, step: int, state: State, metrics: Metrics, due: Due) -> float:
        """Take a snapshot and start writing it; returns the seconds the caller was held up.

        The state may be donated to the next step as soon as this returns.

        Args:
            step: the step just dispatched.
            state: what it returns.
            metrics: of the same step; nothing is kept if one of them is not finite.
            due: which tiers to write.

        Raises:
            Exception: whatever went wrong with the durable save before this one.
        """
        if jax.default_backend() == "cpu":
            # A dispatch waits there for the running step: training time, and no cost of a save.
            jax.block_until_ready(metrics)
        started = time.perf_counter()
        local = due.local and self._memory.is_on and not self._local.is_busy
        if due.durable:
            self._await_previous()
        if not due.durable and not local:
            return 0.0
        copied, shares = self._snapshot(state)
        if due.durable:
            durable = _Taken(step, copied, shares, metrics)
            self._durable.start(lambda: self._write_durable(durable))
        if local:
            taken = _Taken(step, copied, shares, metrics)
            self._local.start(lambda: self._write_local(taken, started))
        return time.perf_counter() - started

    def _await_previous(self) -> None:
        if self._durable.is_busy:
            say(self._world, "the save before is still being written: checkpoint.interval is short")
        self._durable.join()

    def _snapshot(self, state: State) -> tuple[State, Future[jax.Array]]:
        if self._has_room is None:
            stats = jax.local_devices()[0].memory_stats()
            self._has_room = has_room(stats, bytes_per_device(self._programs.state))
        if self._has_room and self._newest() is None:
            copied = self._copy.result()(state)
            self._newest = weakref.ref(jax.tree.leaves(copied)[0])
            return copied, self._thread.submit(self._shares.result(), copied)
        shares: Future[jax.Array] = Future()
        shares.set_result(self._shares.result()(state))
        # Into pinned memory of the host, which the runtime keeps for the next time.
        pinned = jax.tree.map(lambda x: x.sharding.with_memory_kind("pinned_host"), state)
        return jax.device_put(state, pinned), shares

    def _write_durable(self, taken: _Taken) -> None:
        if fault := taken.fault():
            say(self._world, f"step {taken.step} is not saved: {fault}")
            return
        self._checkpoints.write(taken.step, taken.hand_over, taken.shares.result())

    def _write_local(self, taken: _Taken, started: float) -> None:
        if not taken.fault():
            self._memory.write(taken)
        self.local_cost_s = time.perf_counter() - started

    def wait(self) -> None:
        """Wait until all that was saved is written.

        Raises:
            Exception: whatever went wrong with the last durable save.
        """
        self._local.join()
        self._durable.join()

    def close(self) -> None:
        """End the threads, and let another process have the snapshots."""
        self._thread.shutdown()
        self._memory.close()


def newest_first(local: Iterable[int], durable: Iterable[int]) -> list[tuple[int, bool]]:
    """Steps to try, with whether they lie in memory; of equal steps, memory's first."""
    both = [(step, True) for step in local] + [(step, False) for step in durable]
    return sorted(both, reverse=True)


def has_room(stats: Mapping[str, int] | None, needed: int) -> bool:
    """Whether a device can hold a copy of the state beside all that a step needs.

    Args:
        stats: the device's ``memory_stats()``; None where it has no memory of its own.
        needed: bytes of the state on one device.
    """
    if not stats or "bytes_limit" not in stats:
        return True
    used = max(stats.get("peak_bytes_in_use", 0), stats.get("bytes_in_use", 0))
    return stats["bytes_limit"] - used >= needed


def bytes_per_device(abstract: Any) -> int:
    """Bytes of a state's shards on one device."""
    leaves = jax.tree.leaves(abstract)
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in leaves)


class MemoryTier:
    """Tier 1: this process's shards in memory, and the agreement on what to load of them."""

    def __init__(
        self,
        config: TrainerConfig,
        world: World,
        programs: Programs,
        shares: Future[Callable[[State], jax.Array]],
        directory: str,
    ) -> None:
        self._world, self._programs, self._shares = world, programs, shares
        self._layout = _Layout(programs.state)
        self._directory = Path(directory)
        self._store: SnapshotStore | None = None
        if directory and config.checkpoint.snapshot_s:
            self._open(_fingerprint(config, world, programs))

    @property
    def is_on(self) -> bool:
        """Whether snapshots are written."""
        return self._store is not None

    def _open(self, fingerprint: str) -> None:
        try:
            store = SnapshotStore(self._directory, fingerprint)
            why = snapshots.why_no_room(self._directory, self._layout.total_bytes)
        except OSError as error:
            self._off(f"{self._directory}: {error.strerror or error}")
            return
        for step, fault in store.faults.items():
            print(f"snapshot of step {step} in {self._directory} {fault}", flush=True)
        self._store = store
        if why:
            self._off(why)

    def close(self) -> None:
        """Keep no more snapshots; those that are there stay."""
        store, self._store = self._store, None
        if store:
            store.close()

    def _off(self, why: str) -> None:
        self.close()
        print(
            f"no snapshots in memory on process {self._world.process_id}: {why}; a restart goes "
            "back to the last checkpoint",
            flush=True,
        )

    def common_steps(self, ceiling: int | None) -> list[int]:
        """Steps that every process holds, at most ``ceiling``, in ascending order."""
        mine = self._store.steps() if self._store else []
        everybody = agree(self._world, "snapshots", mine)
        common = set(mine).intersection(*everybody)
        return sorted(step for step in common if ceiling is None or step <= ceiling)

    def restore(self, step: int) -> State | None:
        """The state at ``step`` if it is intact on every process; else it is put aside."""
        started = time.perf_counter()
        loaded, fault = self._load(step)
        is_good = self._all_good(f"load/{step}", fault)
        if loaded is not None and is_good:
            fault = self._fault_of_digest(*loaded)
            is_good = self._all_good(f"digest/{step}", fault)
        if fault and self._store:
            kept = self._store.quarantine(step)
            print(f"snapshot of step {step} is bad: {fault}; kept as {kept}", flush=True)
        if loaded is None or not is_good:
            say(
                self._world, f"snapshot of step {step} is not whole everywhere, trying an older one"
            )
            return None
        seconds = time.perf_counter() - started
        say(self._world, f"restored step {step} from memory in {seconds:.2f} s")
        return loaded[0]

    def _all_good(self, key: str, fault: str) -> bool:
        return not any(agree(self._world, f"snapshots/{key}", bool(fault)))

    def _load(self, step: int) -> tuple[tuple[State, list[list[int]]] | None, str]:
        assert self._store is not None
        try:
            index, blocks = self._store.read(step)
            return (self._layout.assemble(blocks), index.digests), ""
        except (SnapshotBadError, OSError, ValueError) as error:
            return None, str(error)

    def _fault_of_digest(self, state: State, expected: list[list[int]]) -> str:
        found = _rows(self._shares.result()(state))
        names = leaf_names(self._programs.state)
        bad = [digest.changed(names, e, f) for e, f in zip(expected, found, strict=True)]
        changed = sorted(set().union(*bad))
        return f"digest differs in {len(changed)} arrays: {changed[0]} …" if changed else ""

    def write(self, taken: _Taken) -> None:
        """Keep a snapshot; where that fails, say why and keep no more."""
        if self._store is None:
            return
        try:
            blocks = self._layout.blocks(taken.state)
            self._store.write(taken.step, blocks, _rows(taken.shares.result()))
        except OSError as error:
            self._off(f"step {taken.step} was not written: {error.strerror or error}")

    def discard_above(self, step: int) -> None:
        """Forget what is newer than the step from which training goes on."""
        if self._store:
            self._store.discard_above(step)


def _rows(shares: jax.Array) -> list[list[int]]:
    """Digests of this process's devices, in the order of the whole array."""
    mine = sorted(shares.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return [np.asarray(shard.data)[0].tolist() for shard in mine]


def _fingerprint(config: TrainerConfig, world: World, programs: Programs) -> str:
    """Equal for starts that may load each other's shards: programs, world, data, directory."""
    plain = fields.to_json(config)
    leaves = jax.tree.leaves(programs.state)
    parts = [
        programs.key,
        plain["data"],
        config.checkpoint.directory,
        [str(leaf.sharding) for leaf in leaves],
        [device.id for device in leaves[0].sharding.mesh.devices.flat],
        [world.process_id, world.num_processes],
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


class _Layout:
    """Which blocks this process holds of a state, in one order for writing and loading.

    Of shards that several of its devices hold alike, one is kept.
    """

    def __init__(self, abstract: Any) -> None:
        self._leaves, self._tree = jax.tree.flatten(abstract)
        #: For each leaf: the place of its blocks, and for each device which of them it holds.
        self._held = [_held(leaf) for leaf in self._leaves]
        shards = [(leaf.sharding.shard_shape(leaf.shape), leaf.dtype) for leaf in self._leaves]
        self._shards = shards
        self.total_bytes = sum(
            (max(held.values()) + 1) * math.prod(shape) * dtype.itemsize
            for held, (shape, dtype) in zip(self._held, shards, strict=True)
        )

    def blocks(self, state: State) -> list[Bytes]:
        """Bytes of each block; on CPU without a copy."""
        wanted = []
        for leaf, held in zip(jax.tree.leaves(state), self._held, strict=True):
            shards = {held[shard.device]: shard.data for shard in leaf.addressable_shards}
            wanted += [shards[n] for n in sorted(shards)]
        for array in wanted:
            array.copy_to_host_async()
        return [np.asarray(array).reshape(-1).view(np.uint8) for array in wanted]

    def assemble(self, blocks: Sequence[Bytes]) -> State:
        """The state on the devices from the bytes of its blocks.

        Raises:
            ValueError: they are not the blocks of this state.
        """
        jobs: list[tuple[jax.Device, Any]] = []
        at = 0
        for held, (shape, dtype) in zip(self._held, self._shards, strict=True):
            count = max(held.values()) + 1
            mine = [block.view(dtype).reshape(shape) for block in blocks[at : at + count]]
            jobs += [(device, mine[n]) for device, n in held.items()]
            at += count
        with ThreadPoolExecutor(snapshots.THREADS) as pool:
            arrays = iter(list(pool.map(lambda job: jax.device_put(job[1], job[0]), jobs)))
        leaves = [
            jax.make_array_from_single_device_arrays(
                leaf.shape, leaf.sharding, [next(arrays) for _ in held]
            )
            for leaf, held in zip(self._leaves, self._held, strict=True)
        ]
        state: State = jax.tree.unflatten(self._tree, leaves)
        return state


def _held(leaf: Any) -> dict[jax.Device, int]:
    places: dict[str, int] = {}
    indices = leaf.sharding.addressable_devices_indices_map(leaf.shape)
    return {device: places.setdefault(str(at), len(places)) for device, at in indices.items()}


class _Background:
    """At most one piece of work in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the last piece of work is still going on."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], None]) -> None:
        """Run ``work`` in a thread; the one before must have ended."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised again by join, in the loop's thread
                self._error = error

        self._thread = threading.Thread(target=run, name=self._name, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the work.

        Raises:
            BaseException: whatever went wrong with it.
        """
        if self._thread:
            self._thread.join()
        error, self._error = self._error, None
        if error:
            raise error
