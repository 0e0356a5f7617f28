"""Tier 1 in a world: which shards are whose, and the agreement on the step to go on from."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tpujob_checkpoint import digest, snapshots, trees
from tpujob_checkpoint.distributed import World, agree, is_peer_loss, say
from tpujob_checkpoint.faults import brief
from tpujob_checkpoint.origin import Origin
from tpujob_checkpoint.programs import Programs, State
from tpujob_checkpoint.reading import Read
from tpujob_checkpoint.settings import Settings
from tpujob_checkpoint.snapshots import Bytes, Index, SnapshotBadError, SnapshotStore

#: What a host can do without: memory, files or threads are short. A run goes on without snapshots.
#: RuntimeError: JAX's errors, and Python's where no thread can be started.
_PASSING = (OSError, ValueError, MemoryError, RuntimeError)


class MemoryTier:
    """Tier 1: this process's shards in memory, and the agreement on what to load of them."""

    def __init__(
        self,
        settings: Settings,
        world: World,
        programs: Programs,
        shares: Future[Callable[[State], jax.Array]],
        directory: str,
        *,
        origin: Origin,
    ) -> None:
        self._world, self._programs, self._shares = world, programs, shares
        self._origin = origin
        self._layout = _Layout(programs.state)
        self._directory = Path(directory)
        self._store: SnapshotStore | None = None
        if directory and settings.snapshot_s:
            self._open(_fingerprint(settings, world, programs))

    @property
    def is_on(self) -> bool:
        """Whether snapshots are written."""
        return self._store is not None

    def _open(self, fingerprint: str) -> None:
        try:
            store = SnapshotStore(self._directory, fingerprint)
            why = snapshots.why_no_room(self._directory, self._layout.total_bytes)
        except OSError as error:
            self.turn_off(f"{self._directory}: {error.strerror or error}")
            return
        for step, fault in store.faults.items():
            print(f"snapshot of step {step} in {self._directory} {fault}", flush=True)
        self._store = store
        if why:
            self.turn_off(why)

    def close(self) -> None:
        """Keep no more snapshots; those that are there stay."""
        store, self._store = self._store, None
        if store:
            store.close()

    def turn_off(self, why: str) -> None:
        """Take no more snapshots, and say why; those that are there stay."""
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

    def restore(self, step: int) -> Read | None:
        """The state at ``step`` if it is intact on every process; a damaged one is put aside."""
        started = time.perf_counter()
        loaded, fault = self._load(step)
        is_good = self._all_good(f"load/{step}", fault)
        if loaded and is_good:
            fault = self._fault_of_digest(step, *loaded)
            is_good = self._all_good(f"digest/{step}", fault)
        if loaded is None or not is_good:
            say(
                self._world, f"snapshot of step {step} is not whole everywhere, trying an older one"
            )
            return None
        seconds = time.perf_counter() - started
        say(self._world, f"restored step {step} from memory in {seconds:.2f} s")
        return Read(loaded[0], loaded[1].origin)

    def _all_good(self, key: str, fault: str) -> bool:
        return not any(agree(self._world, f"snapshots/{key}", bool(fault)))

    def _load(self, step: int) -> tuple[tuple[State, Index] | None, str]:
        assert self._store is not None
        try:
            index, blocks = self._store.read(step)
            if why_not := self._origin.why_not(index.origin, step):
                return None, why_not
            return (self._layout.assemble(blocks), index), ""
        except SnapshotBadError as error:
            return None, self._put_aside(step, str(error))
        except _PASSING as error:  # says nothing about the snapshot, which stays
            print(f"snapshot of step {step} cannot be loaded: {brief(error)}", flush=True)
            return None, str(error)

    def _put_aside(self, step: int, fault: str) -> str:
        assert self._store is not None
        kept = self._store.quarantine(step)
        print(f"snapshot of step {step} is bad: {fault}; kept as {kept}", flush=True)
        return fault

    def _fault_of_digest(self, step: int, state: State, index: Index) -> str:
        found = _rows(self._shares.result()(state))
        names = trees.leaf_names(self._programs.state)
        bad = [digest.changed(names, e, f) for e, f in zip(index.digests, found, strict=True)]
        changed = sorted(set().union(*bad))
        if not changed:
            return ""
        return self._put_aside(step, f"digest differs in {len(changed)} arrays: {changed[0]} …")

    def write(self, step: int, state: State, shares: jax.Array) -> float:
        """Keep a snapshot; where that fails, say why and keep no more.

        Returns:
            Processor time that the writing took, seconds.

        Raises:
            Exception: another process is lost.
        """
        if self._store is None:
            return 0.0
        try:
            jax.block_until_ready(shares)  # waiting takes no processor's time
            blocks = self._layout.blocks(state)
            return self._store.write(step, blocks, _rows(shares), self._origin.now)
        except _PASSING as error:
            if is_peer_loss(self._world, error):
                raise
            why = error.strerror if isinstance(error, OSError) else ""
            self.turn_off(f"step {step} was not written: {why or brief(error)}")
            return 0.0

    def discard_above(self, step: int) -> None:
        """Forget what is newer than the step from which training goes on."""
        if self._store:
            self._store.discard_above(step)


def _rows(shares: jax.Array) -> list[list[int]]:
    """Digests of this process's devices, in the order of the whole array."""
    mine = sorted(shares.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return [np.asarray(shard.data)[0].tolist() for shard in mine]


def _fingerprint(settings: Settings, world: World, programs: Programs) -> str:
    """Equal for starts that may load each other's shards: programs, world, directory."""
    leaves = jax.tree.leaves(programs.state)
    parts = [
        programs.key,
        trees.fingerprint(programs.state),
        settings.directory,
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
