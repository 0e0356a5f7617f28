"""Both tiers together: takes snapshots of the state, has them written, restores the newest.

The loop launches the copy and the digests on the devices and waits for neither; transfers and
files are the business of threads. Threads launch no program: programs over devices of several
processes must begin in the same order on each of them, which only the loop can keep.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import time
import weakref
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import jax

import tpujob
from tpujob_checkpoint.checkpoint import Checkpoints
from tpujob_checkpoint.distributed import Bulletin, World, say
from tpujob_checkpoint.errors import CheckpointUnavailableError
from tpujob_checkpoint.faults import brief, is_exhausted
from tpujob_checkpoint.memory import MemoryTier
from tpujob_checkpoint.origin import Origin
from tpujob_checkpoint.programs import Programs, State, bytes_per_device
from tpujob_checkpoint.schedule import Due, Written
from tpujob_checkpoint.settings import Settings
from tpujob_checkpoint.storage import orbax
from tpujob_checkpoint.turns import TURNS

T = TypeVar("T")
#: For a save that the leader ends alone. The agent's limit is shorter, and names who waits.
_AWAIT_LEADER_S = 86_400.0


@dataclasses.dataclass(frozen=True, slots=True)
class Restored:
    """State of the newest good step; step 0 without a state is a fresh start.

    Attributes:
        step: of the state.
        state: a tree of arrays; None: there is none.
        origin: what was kept with it, see ``origin.Origin``.
    """

    step: int
    state: Any
    origin: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True)
class _Taken:
    """A state that nobody changes any more, with its digests."""

    step: int
    state: State
    shares: jax.Array
    started: float  # by the performance counter
    blocked_s: float  # the loop was held up for so long

    def hand_over(self) -> State:
        """The state, which is no longer held here: its memory is needed for the next one."""
        state, self.state = self.state, {}
        return state

    def tell_durable(self) -> None:
        """It can be restored from now on; of what it cost follows how often to save."""
        lag_s = time.perf_counter() - self.started
        tpujob.committed(self.step, blocked_s=self.blocked_s, lag_s=lag_s)


class Saver:
    """Saves and restores the state of one process. All processes make every call alike."""

    def __init__(
        self,
        settings: Settings,
        world: World,
        programs: Programs,
        *,
        last: int,
        snapshot_dir: str = "",
        origin: Origin | None = None,
    ) -> None:
        """Begin; nothing is read before ``restore``.

        Args:
            settings: where and how often.
            world: all processes that take part.
            programs: of the state.
            last: the step with which the run ends.
            snapshot_dir: memory that outlives the process; empty: no snapshots.
            origin: kept with every state, and asked before one is continued.
        """
        origin = origin or Origin()
        self._world, self._programs, self._last = world, programs, last
        self._checkpoints = Checkpoints(
            settings.directory,
            keep=settings.keep,
            world=world,
            abstract=programs.state,
            digest=lambda state: self._digest.result()(self._shares.result()(state)),
            origin=origin,
        )
        # Loaded in a thread: a start does not wait for what the first save needs.
        self._thread = ThreadPoolExecutor(1, "programs")
        self._copy = self._thread.submit(programs.copy)
        self._shares = self._thread.submit(programs.shares)
        # Not needed before a restart, which then has nothing to compile.
        self._digest = self._thread.submit(programs.digest)
        self._memory = MemoryTier(
            settings, world, programs, self._shares, snapshot_dir, origin=origin
        )
        self._room: float | None = None  # for so many copies, on every device
        self._copies: list[weakref.ref[jax.Array]] = []  # a leaf of each
        self._writers = ThreadPoolExecutor(2, "writer")  # one for each tier
        self._durable, self._local = _settled(None), _settled(None)
        self._written = Bulletin(world, "written")  # everybody's newest snapshot
        self._left_out = Bulletin(world, "left-out")
        self._previous = Bulletin(world, "previous")
        self._last_local = 0
        self._show_written(Written())

    def restore(self, ceiling: int | None) -> Restored:
        """The newest state that is intact on every process, at most of step ``ceiling``.

        Raises:
            CheckpointBadError: there are checkpoints, but no good one.
            CheckpointUnusableError: they belong to a model of other sizes, or to other data.
            CheckpointUnavailableError: the storage does not give them now.
        """
        tpujob.save_request()  # whoever looks for one, obeys: known before a save may be wanted
        with tpujob.waiting_for_save():
            TURNS.await_all()  # another saver's: what is loaded is one of Orbax's operations, too
        listing = self._checkpoints.listing(ceiling)
        in_memory = self._memory.common_steps(ceiling)
        damaged: list[int] = []
        for step, is_local in newest_first(in_memory, listing.steps):
            read = self._memory.restore(step) if is_local else self._checkpoints.restore(step)
            if read and read.damage:
                damaged.append(step)
            elif read:
                # Only now: if no step is good, all stay where they are.
                self._checkpoints.put_aside(damaged)
                self._memory.discard_above(step)
                return Restored(step, read.state, read.origin)
        self._memory.discard_above(0)
        if listing.steps or listing.quarantined:
            raise self._checkpoints.all_bad(listing)
        return Restored(0, None)

    def raise_if_failed(self) -> None:
        """Nobody trains on to the next save in vain.

        Raises:
            Exception: whatever went wrong with the last save.
        """
        for newest in (self._durable, self._local):
            if newest.done():
                newest.result()

    def prepare(self) -> None:
        """Begin to import what the first save needs: the first step did not wait for it."""
        self._writers.submit(orbax)

    def save(self, step: int, state: State, due: Due) -> float:
        """Take a snapshot and start writing it; returns the seconds the caller was held up.

        The state may be donated to the next step as soon as this returns.

        Args:
            step: the step just dispatched.
            state: what it returns; of finite numbers always.
            due: which tiers to write.

        Raises:
            CheckpointUnavailableError: a checkpoint is due, and there is no memory for a copy of
                the state. For want of a snapshot alone no run ends: it keeps none from then on.
            Exception: whatever went wrong with the durable save before this one.
        """
        if jax.default_backend() == "cpu":
            # A dispatch waits there for the running step: training time, and no cost of a save.
            jax.block_until_ready(jax.tree.leaves(state)[0])
        started = time.perf_counter()
        local = due.local and self._memory.is_on
        is_durable = due.durable and not self._is_left_out(step, due)
        if is_durable:
            self._await_previous(step)
        if local:
            self._local.result()  # written long ago, or none would be due
            self._last_local = step
        if not is_durable and not local:
            return 0.0
        try:
            copied, shares = self._snapshot(step, state)
        except CheckpointUnavailableError as error:
            if is_durable:
                raise
            self._memory.turn_off(str(error))
            return time.perf_counter() - started
        if is_durable:
            blocked_s = time.perf_counter() - started
            durable = _Taken(step, copied, shares, started, blocked_s)
            write = functools.partial(self._write_durable, durable)
            self._durable = TURNS.submit(self._writers, write)
        if local:
            taken = _Taken(step, copied, shares, started, 0.0)
            self._local = self._writers.submit(self._write_local, taken)
        return time.perf_counter() - started

    def _is_left_out(self, step: int, due: Due) -> bool:
        """Whether the leader is still writing the checkpoint before, and nobody is to wait for it.

        A bucket's service may be away for minutes. A disk that is slow is waited for, and the agent
        knows that the loop waits.
        """
        if not self._checkpoints.is_in_bucket or due.leave or step == self._last:
            return False
        is_busy = bool(self._left_out.told(step, not self._durable.done()))
        if is_busy:
            say(
                self._world,
                f"no checkpoint of step {step}: the one before is still being written; the "
                "interval is shorter than a save takes",
            )
        return is_busy

    def _await_previous(self, step: int) -> None:
        """Wait until the checkpoint before is written on all hosts: the leader's is the last.

        All wait here and say so. In a collective of the next step they would look hung.
        """
        with tpujob.waiting_for_save():
            self._durable.result()
            self._previous.told(step, None, timeout_s=_AWAIT_LEADER_S)

    def _snapshot(self, step: int, state: State) -> tuple[State, jax.Array]:
        """A copy of the state and its digests; all processes launch the same programs here.

        Raises:
            CheckpointUnavailableError: there is no memory for them. Training would have some.
        """
        try:
            shares = self._shares.result()(state)
            copied = self._copied_if_room(step, state)
            return _pinned(state) if copied is None else copied, shares
        except (MemoryError, jax.errors.JaxRuntimeError) as error:
            if not is_exhausted(error):
                raise
            raise CheckpointUnavailableError(
                f"the state of step {step} cannot be saved: no memory for a copy of it, neither on "
                f"the devices nor on the host: {brief(error)}. Give the hosts more memory, or "
                "spread the state over more devices"
            ) from error

    def _copied_if_room(self, step: int, state: State) -> State | None:
        """A copy on the devices; None if it has to be on the host."""
        if self._room is None:
            stats = jax.local_devices()[0].memory_stats()
            self._room = room(stats, bytes_per_device(self._programs.state))
        try:
            return self._copied(state)
        except (MemoryError, jax.errors.JaxRuntimeError) as error:
            if not is_exhausted(error):
                raise
            # Steps may need more than when it was judged, as for longer rows.
            print(
                f"no room for a copy of step {step} on the devices, host memory takes it: "
                f"{brief(error)}",
                flush=True,
            )
            self._room = 0.0
            return None

    def _copied(self, state: State) -> State | None:
        """A copy on the devices; None if they have no room for one more."""
        if self._room == math.inf:
            return self._copy.result()(state)
        # How much room there is differs among hosts: these copies are no programs.
        self._copies = [leaf for leaf in self._copies if leaf() is not None]
        if len(self._copies) >= (self._room or 0.0):
            return None
        shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
        copied = jax.device_put(state, shardings, may_alias=False)
        self._copies.append(weakref.ref(jax.tree.leaves(copied)[0]))
        return copied

    def _write_durable(self, taken: _Taken) -> None:
        self._checkpoints.write(taken.step, taken.hand_over, taken.shares, taken.tell_durable)

    def _write_local(self, taken: _Taken) -> None:
        cpu_s = self._memory.write(taken.step, taken.state, taken.shares)
        took_s = time.perf_counter() - taken.started
        self._show_written(Written(taken.step, took_s, cpu_s / len(os.sched_getaffinity(0))))

    def _show_written(self, written: Written) -> None:
        if self._memory.is_on:
            self._written.show(written)

    def last_snapshot(self) -> Written | None:
        """The last snapshot in memory, as the slowest made it; None while not all have it."""
        shown = [Written(*values) for values in self._written.shown()]
        return slowest(shown, self._world.num_processes, self._last_local)

    def wait(self) -> None:
        """Wait until all that was saved is written.

        Raises:
            Exception: whatever went wrong with the last durable save.
        """
        with tpujob.waiting_for_save():
            self._local.result()
            self._durable.result()

    def close(self) -> None:
        """End the threads, and let another process have the snapshots."""
        self._thread.shutdown()
        self._writers.shutdown()
        self._memory.close()


def _pinned(state: State) -> State:
    """A copy in pinned memory of the host, which the runtime keeps for the next time."""
    pinned = jax.tree.map(lambda leaf: leaf.sharding.with_memory_kind("pinned_host"), state)
    return jax.device_put(state, pinned)


def slowest(written: Collection[Written], processes: int, step: int) -> Written | None:
    """The last snapshot as the slowest process made it; None while one of them lacks it.

    Each keeps its newest two. If some took a snapshot while others still wrote the one before,
    there might be no step that all of them hold.

    Args:
        written: everybody's newest snapshot; of those who keep any.
        processes: how many there are.
        step: of the last snapshot that was due.
    """
    if len(written) < processes or any(newest.step != step for newest in written):
        return None
    return Written(step, max(w.took_s for w in written), max(w.cost_s for w in written))


def newest_first(local: Iterable[int], durable: Iterable[int]) -> list[tuple[int, bool]]:
    """Steps to try, with whether they lie in memory; of equal steps, memory's first."""
    both = [(step, True) for step in local] + [(step, False) for step in durable]
    return sorted(both, reverse=True)


def room(stats: Mapping[str, int] | None, needed: int) -> float:
    """How many copies of the state a device is to hold beside all that a step needs.

    One at most, of memory of its own; the host's is the same wherever a copy lies in it.

    Args:
        stats: the device's ``memory_stats()``; None where it has no memory of its own.
        needed: bytes of the state on one device.
    """
    if not stats or "bytes_limit" not in stats:
        return math.inf
    used = max(stats.get("peak_bytes_in_use", 0), stats.get("bytes_in_use", 0))
    return float(stats["bytes_limit"] - used >= needed)


def _settled(value: T) -> Future[T]:
    """What is there already, as something that may have to be waited for."""
    future: Future[T] = Future()
    future.set_result(value)
    return future
