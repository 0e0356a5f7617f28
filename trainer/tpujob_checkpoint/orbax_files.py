"""States on storage by Orbax, which no other module imports: that takes half a second.

A start from memory or from nothing needs none of it before its first step. The fork server
imports this module beforehand.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from typing import Any, TypeVarTuple

from etils import epath
from orbax.checkpoint import v1 as ocp
from orbax.checkpoint._src import asyncio_utils
from orbax.checkpoint._src.path import atomicity, atomicity_types, gcs_utils
from orbax.checkpoint._src.serialization import tensorstore_utils
from orbax.checkpoint.experimental.v1._src.saving import execution

from tpujob_checkpoint import buckets, storage
from tpujob_checkpoint.trees import STATE

#: By checkpoint of ours under way: takes where its files lie, raises if it must not be committed.
_guards: dict[str, Callable[[epath.Path], None]] = {}
_commit = atomicity.on_commit_callback


async def _commit_guarded(made: Any, **options: Any) -> None:
    """Orbax's last act of a save, on one process: a file's rename or a mark in a bucket."""
    guard = _guards.get(os.fspath(made.get_final()))
    if guard:  # what the program saves with Orbax by itself has none
        guard(epath.Path(made.get()))
    await _commit(made, **options)


_Ts = TypeVarTuple("_Ts")


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that ignores what TensorStore's threads say after it was closed."""

    def call_soon_threadsafe(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As any loop's, but for a closed one, where nobody waits for the answer."""
        try:
            return super().call_soon_threadsafe(callback, *args, context=context)
        except RuntimeError:
            if not self.is_closed():
                raise
            return asyncio.Handle(callback, args, self, context)


def _run_and_clear(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in an event loop of its own, and cancel the tasks that it leaves.

    Of many arrays that cannot be read, Orbax raises the first one's error and closes the loop.
    Tasks of the others would keep their buffers until they are collected, with a warning for each.
    """
    loop = _Loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(work)
    finally:
        if left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()


_run_sync = asyncio_utils.run_sync


def _run_beside(work: Coroutine[Any, Any, Any]) -> Any:
    """As Orbax does, but from within an event loop in a thread with a loop of our own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run_sync(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(copy_context().run, _run_sync, work).result()


#: What is changed in Orbax, for which there is no public switch.
_CHANGED = (
    # It compares the directory's name among processes by collectives on the devices. From a
    # thread, they would be dispatched in another order on each process than the training steps,
    # and all would hang. The name is agreed upon when a run starts (see ``Checkpoints.listing``).
    (execution, "_check_directory_consistency", lambda _: None),
    # It asks nobody whether a save that is complete may become a checkpoint.
    (atomicity, "on_commit_callback", _commit_guarded),
    # It leaves the tasks of what failed to the garbage collector.
    (asyncio_utils, "_run_sync_via_new_loop", _run_and_clear),
    (asyncio_utils, "run_sync", _run_beside),
    # It knows one kind of bucket only, so it is told that ``s3://`` is of that kind.
    (gcs_utils, "is_gcs_path", storage.is_in_bucket),
    (gcs_utils, "get_kvstore_for_gcs", buckets.kvstore_spec),
    (tensorstore_utils, "_use_gcs_driver", storage.is_in_bucket),
    (tensorstore_utils, "_normalize_path", storage.normalized),
)
for _module, _name, _function in _CHANGED:
    if not hasattr(_module, _name):
        raise ImportError(f"this Orbax version has no {_name}: install 0.12")
    setattr(_module, _name, _function)
if atomicity_types.COMMIT_SUCCESS_FILE != storage.COMMITTED:
    raise ImportError("this Orbax version marks committed steps in another way: install 0.12")


def load(path: os.PathLike[str], wanted: dict[str, Any], process_id: int) -> dict[str, Any]:
    """Trees like the abstract ones in ``wanted``; raises whatever damage makes Orbax raise."""
    context = _context()
    # Without barriers of Orbax's own: a process that cannot read its part must not
    # leave the others waiting inside the library.
    context.multiprocessing.active_processes = {process_id}
    context.multiprocessing.primary_host = process_id
    with context:
        loaded: dict[str, Any] = ocp.load(path, wanted, checkpointable_name=STATE)
    return loaded


def save(
    path: os.PathLike[str],
    trees: dict[str, Any],
    processes: int,
    guard: Callable[[epath.Path], None],
) -> None:
    """Write trees of arrays, and wait until they are committed.

    Args:
        path: the checkpoint's.
        trees: by name; emptied as soon as the arrays are on the host.
        processes: how many of them save.
        guard: called by one process when all files are written, with their directory; what it
            raises is raised, and nothing is committed.
    """
    context = _context()
    context.memory.deepcopy_host_arrays = False
    # By barriers of the coordination service: without this some of them are collectives.
    context.multiprocessing.active_processes = set(range(processes))
    with _guarded(os.fspath(path), guard):
        with context:
            saving = ocp.save_async(path, trees, checkpointable_name=STATE)
        trees.clear()
        saving.result()


@contextlib.contextmanager
def _guarded(path: str, guard: Callable[[epath.Path], None]) -> Iterator[None]:
    _guards[path] = guard
    try:
        yield
    finally:
        del _guards[path]


def _context() -> ocp.Context:
    context = ocp.Context()
    # Slicing replicated leaves per replica compiled 2 s of small programs in every
    # process at its first save, to spare the network kilobytes.
    context.array.saving.use_replica_parallel = False
    return context
