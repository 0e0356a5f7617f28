"""Tier 2: checkpoints written with Orbax, and never resumed from when they are bad.

Layout: ``<directory>/<step>/`` is a committed step; ``<step>.quarantined-…`` one that
failed its checks (renamed, never deleted); ``<step>.superseded-…`` one above the step
ceiling of a restart; ``<step>.discarded-…`` one on its way out. In a bucket a step is
committed when it has Orbax's mark in it, for nothing there is renamed in one move.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

from tpujob_checkpoint import digest as digests
from tpujob_checkpoint import storage
from tpujob_checkpoint.claims import Claims
from tpujob_checkpoint.distributed import World, agree, say, told_by_leader
from tpujob_checkpoint.programs import mesh_of

DIGEST = "digest"
STATE = "state"


class CheckpointBadError(RuntimeError):
    """Checkpoints exist, and none of them can be restored (exit code 65)."""


class CheckpointUnusableError(RuntimeError):
    """The directory or the configuration is at fault, not a checkpoint's content."""


@dataclasses.dataclass(frozen=True, slots=True)
class Listing:
    """What there is in the directory: steps that may be good, and how many are not."""

    steps: list[int]
    quarantined: int


def orbax() -> ModuleType:
    """What reads and writes, imported at the first call."""
    from tpujob_checkpoint import orbax_files  # noqa: PLC0415 - half a second that not every start needs

    return orbax_files


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
        self._directory = storage.path_of(directory)
        #: Whether its service may be away for a while, as no disk is.
        self.is_in_bucket = storage.is_in_bucket(directory)
        self._claims = Claims(self._directory)
        self._keep = keep
        self._world = world
        self._abstract = abstract
        self._digest = digest
        self._names = leaf_names(abstract)

    def listing(self, ceiling: int | None) -> Listing:
        """Steps at most ``ceiling`` that there are to restore, the same on every process.

        Raises:
            CheckpointUnusableError: processes have different directories, or it cannot be read.
            SharedDirectoryError: the directory is another job's by now.
        """
        try:
            seen = self._prepare(ceiling) | {"directory": str(self._directory)}
        except ValueError as error:  # TensorStore's, about a bucket
            raise CheckpointUnusableError(
                f"checkpoint directory {self._directory} cannot be read: {_brief(error)}"
            ) from error
        told = told_by_leader(self._world, "steps", seen)
        if told["directory"] != str(self._directory):
            raise CheckpointUnusableError(
                f"checkpoint directory is {self._directory} here and {told['directory']} on "
                "process 0: give all processes the same one"
            )
        return Listing(told["steps"], told["quarantined"])

    def all_bad(self, listing: Listing) -> CheckpointBadError:
        """The error for the case that nothing could be restored although there was something."""
        count = len(listing.steps) + listing.quarantined
        return CheckpointBadError(
            f"none of the {count} checkpoints in {self._directory} is readable (they are kept "
            "under names with 'quarantined'): repair one, or start afresh in another directory"
        )

    def _prepare(self, ceiling: int | None) -> dict[str, Any]:
        """What there is to restore, after the leader has cleared what killed runs left."""
        if not self._world.is_leader:
            return {}
        self._claims.take()  # first: what an older world commits after this would be missed
        steps, quarantined = [], 0
        for path in self._directory.iterdir():
            number, _, rest = path.name.partition(".")
            if not number.isdecimal():
                continue
            quarantined += rest.startswith("quarantined")
            is_torn = "orbax-checkpoint-tmp" in rest or (not rest and not self._is_whole(path))
            if rest.startswith("discarded") or is_torn:
                path.rmtree(missing_ok=True)
            elif not rest and ceiling is not None and int(number) > ceiling:
                self._rename(int(number), "superseded")
            elif not rest:
                steps.append(int(number))
        return {"steps": steps, "quarantined": quarantined}

    def restore(self, step: int) -> Any | None:
        """The state at ``step`` if every process finds it good; else it is put aside.

        Raises:
            CheckpointUnusableError: it belongs to a model of other sizes, or a bucket's service
                does not answer.
        """
        started = time.perf_counter()
        loaded, faults = self._try(step, "")
        if faults and self.is_in_bucket:
            # What is damaged stays so. What could not be read may be there when asked again.
            self._require_answer(step, faults)
            loaded, faults = self._try(step, "/again")
        if loaded is not None and not faults:
            seconds = time.perf_counter() - started
            say(self._world, f"restored step {step} from {self._directory} in {seconds:.2f} s")
            return loaded[STATE]
        self._quarantine(step, faults)
        return None

    def _try(self, step: int, again: str) -> tuple[Any | None, list[str]]:
        """State and digest at ``step``, and everybody's faults, of which a good one has none."""
        rows, is_foreign, fault = self._inspect(step)
        faults = self._faults(f"inspect/{step}{again}", fault, is_foreign=is_foreign)
        # Orbax numbers its operations, and all processes must count alike for the next save:
        # a checkpoint is loaded by all of them or by none.
        loaded = None
        if not faults:
            loaded, fault = self._load(step, rows)
            faults = self._faults(f"load/{step}{again}", fault)
        if loaded is not None and not faults:
            faults = self._faults(f"digest/{step}{again}", self._fault_of_digest(loaded))
        return loaded, faults

    def _require_answer(self, step: int, faults: list[str]) -> None:
        reason = storage.buckets().why_not_writable(str(self._directory))
        if reasons := self._faults(f"answer/{step}", reason):
            raise CheckpointUnusableError(
                f"checkpoint of step {step} cannot be read from {self._directory}: "
                f"{'; '.join([*faults, *reasons])}. It was not put aside"
            )

    def _faults(self, key: str, mine: str, *, is_foreign: bool = False) -> list[str]:
        """Everybody's fault with this checkpoint, judged alike by all; empty: nobody has one."""
        return judged(agree(self._world, f"checkpoint/{key}", [is_foreign, mine]))

    def _inspect(self, step: int) -> tuple[int, bool, str]:
        """Rows of its digest, whether it is of another model, and what is wrong with it."""
        files = orbax()  # which, if it cannot be imported, says nothing about the checkpoint
        try:
            custom = files.metadata(self._path(step))
            tree, rows, check = custom["tree"], custom["rows"], custom["check"]
        except Exception as error:  # noqa: BLE001 - whatever damage makes Orbax raise
            return 0, False, f"metadata is not readable ({_brief(error)})"
        if check != _check(tree, rows):
            return 0, False, "metadata is damaged"
        if tree == fingerprint(self._abstract):
            return rows, False, ""
        mismatch = (
            f"checkpoint {self._path(step)} holds a model of other sizes (or another optimizer) "
            "than the configuration: use the former sizes, or another checkpoint directory"
        )
        return rows, True, mismatch

    def _load(self, step: int, rows: int) -> tuple[Any | None, str]:
        wanted = {STATE: self._abstract, DIGEST: self._abstract_digest(rows)}
        files = orbax()
        try:
            return files.load(self._path(step), wanted, self._world.process_id), ""
        except Exception as error:  # noqa: BLE001 - whatever damage makes Orbax raise
            return None, f"not readable ({_brief(error)})"

    def _abstract_digest(self, rows: int) -> jax.ShapeDtypeStruct:
        replicated = NamedSharding(mesh_of(self._abstract), PartitionSpec())
        return jax.ShapeDtypeStruct((rows, len(self._names)), "uint32", sharding=replicated)

    def _fault_of_digest(self, loaded: dict[str, Any]) -> str:
        found = _on_host(self._digest(loaded[STATE]))
        expected = np.sum(_on_host(loaded[DIGEST]), axis=0, dtype=np.uint32)
        names = digests.changed(self._names, expected.tolist(), found.tolist())
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

    def write(
        self,
        step: int,
        take: Callable[[], Any],
        shares: jax.Array,
        on_durable: Callable[[], None],
    ) -> None:
        """Write a checkpoint, wait until it is durable, and drop the oldest ones.

        For a thread beside the loop: it waits for other processes, but never on the devices.

        Args:
            step: the step after which the state was taken.
            take: gives the state, which is held no longer than until it is on the host.
            shares: ``digest.make_shares`` of the state.
            on_durable: called as soon as it can be restored.

        Raises:
            CheckpointUnusableError: the directory cannot take it; says why.
            SupersededError: a newer world has begun on the directory.
            SharedDirectoryError: another job has.
        """
        try:
            self._write(step, take, shares)
        except (OSError, ValueError) as error:
            raise CheckpointUnusableError(
                f"checkpoint of step {step} could not be written to {self._directory}: "
                f"{_brief(error)}; those before it are kept: see that it has room and is reached"
            ) from error
        on_durable()
        if self._world.is_leader:
            try:
                self._discard_old()
            except ValueError as error:  # a bucket's: the next save tries again
                say(self._world, f"old checkpoints were not removed: {_brief(error)}")

    def _write(self, step: int, take: Callable[[], Any], shares: jax.Array) -> None:
        self._claims.require()  # before it meets a newer world's files of this step
        path = self._path(step)
        if self._world.is_leader and not self._is_whole(path):  # what an older world left since
            path.rmtree(missing_ok=True)
        tree, rows = fingerprint(self._abstract), shares.shape[0]
        custom = {"tree": tree, "rows": rows, "check": _check(tree, rows)}
        trees = {STATE: take(), DIGEST: shares}
        processes = self._world.num_processes
        orbax().save(path, trees, custom, processes, self._claims.require)

    def _discard_old(self) -> None:
        found = [p for p in self._directory.iterdir() if p.name.isdecimal() and self._is_whole(p)]
        for path in sorted(found, key=lambda p: int(p.name))[: -self._keep]:
            # Renamed first: a half-removed checkpoint must not look like one.
            gone = path if self.is_in_bucket else self._rename(int(path.name), "discarded")
            gone.rmtree(missing_ok=True)

    def _is_whole(self, step: epath.Path) -> bool:
        """Whether a save of this step came to its end."""
        return not self.is_in_bucket or (step / storage.COMMITTED).exists()


def judged(found: Iterable[tuple[bool, str]]) -> list[str]:
    """What is wrong with a step, from what every process found; empty: nothing.

    Args:
        found: for each process, whether the step is another model's, and its fault or "".

    Raises:
        CheckpointUnusableError: it is another model's. One process that could read so much
            outweighs all that could not: damage does not look like that.
    """
    found = list(found)
    foreign = sorted({fault for is_foreign, fault in found if is_foreign})
    if foreign:
        raise CheckpointUnusableError("; ".join(foreign))
    return sorted({fault for _, fault in found if fault})


def require_writable(directory: str) -> None:
    """Fail early, and in words, when checkpoints could not be written.

    Raises:
        CheckpointUnusableError: names the directory and the user id.
    """
    if storage.is_in_bucket(directory):
        if reason := storage.buckets().why_not_writable(directory):
            raise CheckpointUnusableError(f"checkpoint directory {directory}: {reason}")
        return
    probe = epath.Path(directory) / f".writable-{os.getpid()}"
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.write_text("")
        probe.unlink(missing_ok=True)  # a process of another pod may have the same id
    except OSError as error:
        raise CheckpointUnusableError(
            f"checkpoint directory {directory} is not writable by user id {os.geteuid()} "
            f"({error.strerror or error}): mount it writable for this user, or choose another"
        ) from error


def leaf_names(tree: Any) -> list[str]:
    """Names of the leaves in the order in which JAX flattens them: ``params/layers/0/query``."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]


def fingerprint(abstract: Any) -> str:
    """Equal for states that can be restored into each other: names, shapes and types."""
    leaves = zip(leaf_names(abstract), jax.tree.leaves(abstract), strict=True)
    text = ";".join(f"{name}:{leaf.dtype}{list(leaf.shape)}" for name, leaf in leaves)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _check(tree: str, rows: int) -> str:
    return hashlib.sha256(f"{tree} {rows}".encode()).hexdigest()[:8]


def _on_host(array: jax.Array) -> Any:
    return array.addressable_data(0).__array__()


def _brief(error: BaseException) -> str:
    first = str(error).strip().partition("\n")[0]
    # TensorStore names the file in the middle, perhaps more than once, and the reason at the end.
    told = first if len(first) <= 300 else f"{first[:100]} … {first[-200:]}"
    return f"{type(error).__name__}: {told}"
