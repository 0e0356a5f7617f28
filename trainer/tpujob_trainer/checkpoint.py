"""Saves and restores the state with Orbax, and never resumes from a bad checkpoint.

Layout: ``<directory>/<step>/`` is a committed step; ``<step>.quarantined-…`` one that
failed its checks (renamed, never deleted); ``<step>.superseded-…`` one above the step
ceiling of a restart; ``<step>.discarded-…`` one on its way out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
from etils import epath
from orbax.checkpoint import v1 as ocp

import tpujob
from tpujob_trainer import digest as digests
from tpujob_trainer.distributed import World, agree, told_by_leader
from tpujob_trainer.telemetry import say

DIGEST = "digest"
STATE = "state"


class CheckpointBadError(RuntimeError):
    """Checkpoints exist, and none of them can be restored (exit code 65)."""


class CheckpointUnusableError(RuntimeError):
    """The directory or the configuration is at fault, not a checkpoint's content."""


@dataclasses.dataclass(frozen=True, slots=True)
class Restored:
    """State of the newest good checkpoint; step 0 without a state is a fresh start."""

    step: int
    state: Any


class Checkpoints:
    """The checkpoints of one run. All processes make every call, in the same order."""

    def __init__(
        self,
        directory: str,
        *,
        keep: int,
        world: World,
        abstract: Any,
        digest: Callable[[Any], jax.Array],
    ) -> None:
        self._directory = epath.Path(directory)
        self._keep = keep
        self._world = world
        self._abstract = abstract
        self._digest = digest
        self._names = leaf_names(abstract)
        self._writing: _Writing | None = None

    def restore(self, ceiling: int | None) -> Restored:
        """The newest checkpoint that is intact on every process, at most ``ceiling``.

        Raises:
            CheckpointBadError: there are checkpoints, but no good one.
            CheckpointUnusableError: they belong to a model of other sizes.
        """
        listed = _Listing(**told_by_leader(self._world, "steps", self._prepare(ceiling)))
        for step in sorted(listed.steps, reverse=True):
            state = self._try(step)
            if state is not None:
                return Restored(step, state)
        if listed.steps or listed.quarantined:
            count = len(listed.steps) + listed.quarantined
            raise CheckpointBadError(
                f"none of the {count} checkpoints in {self._directory} is readable (they are kept "
                "under names with 'quarantined'): repair one, or start afresh in another directory"
            )
        return Restored(0, None)

    def _prepare(self, ceiling: int | None) -> dict[str, Any]:
        """What there is to restore, after the leader has cleared what killed runs left."""
        if not self._world.is_leader:
            return {}
        steps, quarantined = [], 0
        for path in self._directory.iterdir():
            number, _, rest = path.name.partition(".")
            if not number.isdecimal():
                continue
            quarantined += rest.startswith("quarantined")
            if rest.startswith("discarded") or "orbax-checkpoint-tmp" in rest:
                path.rmtree(missing_ok=True)
            elif not rest and ceiling is not None and int(number) > ceiling:
                self._rename(int(number), "superseded")
            elif not rest:
                steps.append(int(number))
        return {"steps": steps, "quarantined": quarantined}

    def _try(self, step: int) -> Any | None:
        """The state at ``step`` if every process finds it good; else it is put aside."""
        started = time.perf_counter()
        mismatch, fault = self._inspect(step)
        faults = self._faults(f"inspect/{step}", fault or mismatch)
        if not fault and mismatch and all(faults):
            raise CheckpointUnusableError(mismatch)
        # Orbax numbers its operations, and all processes must count alike for the next save:
        # a checkpoint is loaded by all of them or by none.
        loaded = None
        if not faults:
            loaded, fault = self._load(step)
            faults = self._faults(f"load/{step}", fault)
        if loaded is not None and not faults:
            faults = self._faults(f"digest/{step}", self._fault_of_digest(loaded))
        if loaded is not None and not faults:
            seconds = time.perf_counter() - started
            say(self._world, f"restored step {step} from {self._directory} in {seconds:.2f} s")
            return loaded[STATE]
        self._quarantine(step, faults)
        return None

    def _faults(self, key: str, mine: str) -> list[str]:
        """Everybody's fault with this checkpoint; empty when nobody has one."""
        return sorted({fault for fault in agree(self._world, f"checkpoint/{key}", mine) if fault})

    def _inspect(self, step: int) -> tuple[str, str]:
        """Whether step ``step`` is of another model, and what is wrong with it otherwise."""
        try:
            custom = ocp.metadata(self._path(step), STATE).custom_metadata
            tree, check = custom["tree"], custom["check"]
        except Exception as error:  # noqa: BLE001 - whatever damage makes Orbax raise
            return "", f"metadata is not readable ({_brief(error)})"
        if check != _check(tree):
            return "", "metadata is damaged"
        if tree == fingerprint(self._abstract):
            return "", ""
        return (
            f"checkpoint {self._path(step)} holds a model of other sizes (or another optimizer) "
            "than the configuration: use the former sizes, or another checkpoint directory"
        ), ""

    def _load(self, step: int) -> tuple[Any | None, str]:
        wanted = {STATE: self._abstract, DIGEST: self._abstract_digest()}
        context = _context()
        # Without barriers of Orbax's own: a process that cannot read its part must not
        # leave the others waiting inside the library.
        context.multiprocessing.active_processes = {self._world.process_id}
        context.multiprocessing.primary_host = self._world.process_id
        try:
            with context:
                return ocp.load(self._path(step), wanted, checkpointable_name=STATE), ""
        except Exception as error:  # noqa: BLE001 - whatever damage makes Orbax raise
            return None, f"not readable ({_brief(error)})"

    def _abstract_digest(self) -> jax.ShapeDtypeStruct:
        mesh = jax.tree.leaves(self._abstract)[0].sharding.mesh
        replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        return jax.ShapeDtypeStruct((len(self._names),), "uint32", sharding=replicated)

    def _fault_of_digest(self, loaded: dict[str, Any]) -> str:
        found = self._digest(loaded[STATE])
        names = digests.changed(
            self._names, _on_host(loaded[DIGEST]).tolist(), _on_host(found).tolist()
        )
        shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
        return f"digest differs in {len(names)} arrays: {shown}" if names else ""

    def _quarantine(self, step: int, faults: list[str]) -> None:
        if self._world.is_leader:
            kept = self._rename(step, "quarantined")
            print(
                f"checkpoint of step {step} is bad: {'; '.join(faults)}; kept as {kept}, "
                "taking the next older one",
                flush=True,
            )
        # Nobody goes on before the name is gone, or a later save could meet it.
        agree(self._world, f"checkpoint/quarantined/{step}", value=True)

    def _rename(self, step: int, reason: str) -> epath.Path:
        target = self._directory / f"{step}.{reason}-{time.time_ns() // 1_000_000}"
        self._path(step).rename(target)
        return target

    def _path(self, step: int) -> epath.Path:
        return self._directory / str(step)

    def save(self, step: int, state: Any) -> float:
        """Start saving; returns the seconds for which the caller was held up.

        The state may be donated to the next step as soon as this returns.

        Raises:
            Exception: whatever went wrong with the save before this one.
        """
        started = time.perf_counter()
        self.wait()
        tree = fingerprint(self._abstract)
        with _context():
            response = ocp.save_async(
                self._path(step),
                {STATE: state, DIGEST: self._digest(state)},
                checkpointable_name=STATE,
                custom_metadata={"tree": tree, "check": _check(tree)},
            )
        self._writing = _Writing(response, lambda: self._committed(step))
        return time.perf_counter() - started

    def wait(self) -> None:
        """Wait until the save under way is durable.

        Raises:
            Exception: whatever went wrong with it.
        """
        writing, self._writing = self._writing, None
        if writing:
            writing.join()

    def _committed(self, step: int) -> None:
        tpujob.committed(step)
        if self._world.is_leader:
            self._discard_old()

    def _discard_old(self) -> None:
        steps = sorted(int(p.name) for p in self._directory.iterdir() if p.name.isdecimal())
        for step in steps[: -self._keep]:
            # Renamed first: a half-removed checkpoint must not look like one.
            self._rename(step, "discarded").rmtree(missing_ok=True)


@dataclasses.dataclass(frozen=True, slots=True)
class _Listing:
    steps: list[int]
    quarantined: int


class _Writing:
    """A save under way: a thread waits for its commit, so that the loop does not."""

    def __init__(self, response: Any, committed: Callable[[], None]) -> None:
        self._response = response
        self._committed = committed
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._wait, name="commit", daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        try:
            self._response.result()
            self._committed()
        except BaseException as error:  # noqa: BLE001 - raised again by join, in the loop's thread
            self._error = error

    def join(self) -> None:
        self._thread.join()
        if self._error:
            raise self._error


def require_writable(directory: str) -> None:
    """Fail early, and in words, when checkpoints could not be written.

    Raises:
        CheckpointUnusableError: names the directory and the user id.
    """
    probe = epath.Path(directory) / f".writable-{os.getpid()}"
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise CheckpointUnusableError(
            f"checkpoint directory {directory} is not writable by user id {os.geteuid()} "
            f"({error.strerror or error}): mount it writable for this user, or choose another"
        ) from error


def _context() -> ocp.Context:
    context = ocp.Context()
    # Slicing replicated leaves per replica compiled 2 s of small programs in every
    # process at its first save, to spare the network kilobytes.
    context.array.saving.use_replica_parallel = False
    return context


def leaf_names(tree: Any) -> list[str]:
    """Names of the leaves in the order in which JAX flattens them: ``params/layers/0/query``."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]


def fingerprint(abstract: Any) -> str:
    """Equal for states that can be restored into each other: names, shapes and types."""
    leaves = zip(leaf_names(abstract), jax.tree.leaves(abstract), strict=True)
    text = ";".join(f"{name}:{leaf.dtype}{list(leaf.shape)}" for name, leaf in leaves)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _check(tree: str) -> str:
    return hashlib.sha256(tree.encode()).hexdigest()[:8]


def _on_host(array: jax.Array) -> Any:
    return array.addressable_data(0).__array__()


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"[
        :160
    ]
