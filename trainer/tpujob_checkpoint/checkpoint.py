"""Tier 2: checkpoints written with Orbax, and never resumed from when they are bad.

Layout: ``<directory>/<step>/`` is a committed step; ``<step>.quarantined-…`` one that
was proven to be damaged; ``<step>.superseded-…`` one above the step ceiling of a restart, or in
the way of a save; ``<step>.discarded-…`` one on its way out. Of the first two the newest stay. In
a bucket a step is committed when it has Orbax's mark in it, for nothing there is renamed in one
move.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from etils import epath

from tpujob_checkpoint import contents, reading, storage
from tpujob_checkpoint.claims import Claims
from tpujob_checkpoint.contents import Contents
from tpujob_checkpoint.distributed import World, agree, say, told_by_leader
from tpujob_checkpoint.errors import (
    CheckpointBadError,
    CheckpointUnavailableError,
    CheckpointUnusableError,
)
from tpujob_checkpoint.faults import Kind, brief, is_exhausted
from tpujob_checkpoint.origin import Origin
from tpujob_checkpoint.reading import Read, Reader
from tpujob_checkpoint.trees import DIGEST, STATE, fingerprint

#: Steps put aside stay for people to look at: so many of each kind, or whole states would pile up.
_ASIDE_KEPT = 2
#: A step's name as we write it. Other digits, or zeros before them, are somebody else's files.
_STEP = re.compile(r"(0|[1-9][0-9]*)(?:\.(.+))?", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class Listing:
    """What there is in the directory: steps that may be good, and how many are not."""

    steps: list[int]
    quarantined: int


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
        origin: Origin,
    ) -> None:
        self._directory = storage.path_of(directory)
        #: Whether its service may be away for a while, as no disk is.
        self.is_in_bucket = storage.is_in_bucket(directory)
        self._claims = Claims(self._directory)
        self._keep = keep
        self._world = world
        self._abstract, self._origin = abstract, origin
        # In a bucket each request is tried for four minutes as it is.
        self._pauses_s = () if self.is_in_bucket else reading.PAUSES_S
        self._reader = Reader(
            self._directory,
            world,
            abstract=abstract,
            digest=digest,
            origin=origin,
            pauses_s=self._pauses_s,
        )
        #: The newest step that was read back, as it was restored or after its save.
        self._newest_good: int | None = None

    def listing(self, ceiling: int | None) -> Listing:
        """Steps at most ``ceiling`` that there are to restore, the same on every process.

        Raises:
            CheckpointUnusableError: processes have different directories, or the newest step
                cannot be continued.
            CheckpointUnavailableError: the directory cannot be read now.
            SharedDirectoryError: the directory is another job's by now.
        """
        for attempt, pause_s in enumerate((*self._pauses_s, None)):
            mine = {"directory": str(self._directory)} | self._looked(ceiling)
            told = told_by_leader(self._world, f"steps/{attempt}", mine)
            if told["directory"] != str(self._directory):
                raise CheckpointUnusableError(
                    f"checkpoint directory is {self._directory} here and {told['directory']} on "
                    "process 0: give all processes the same one"
                )
            if told["unusable"]:
                raise CheckpointUnusableError(told["unusable"])
            if not told["unread"]:
                return Listing(told["steps"], told["quarantined"])
            reason = f"checkpoint directory {self._directory} cannot be read: {told['unread']}"
            if pause_s is not None:
                say(self._world, f"{reason}; next try in {pause_s} s")
                time.sleep(pause_s)
        raise CheckpointUnavailableError(f"{reason}. Nothing in it was changed")

    def _looked(self, ceiling: int | None) -> dict[str, Any]:
        """What the leader finds, or why it finds nothing."""
        found: dict[str, Any] = {"steps": [], "quarantined": 0, "unusable": "", "unread": ""}
        if not self._world.is_leader:
            return found
        try:
            return found | self._prepare(ceiling)
        except CheckpointUnusableError as error:
            return found | {"unusable": str(error)}
        except (OSError, ValueError) as error:  # ValueError: TensorStore's, about a bucket
            return found | {"unread": brief(error)}

    def _prepare(self, ceiling: int | None) -> dict[str, Any]:
        """What there is to restore, after the leader has cleared what killed runs left."""
        self._require_ours(ceiling)
        self._claims.take()  # before it lists: what an older world commits later would be missed
        steps, aside = [], list[tuple[str, epath.Path]]()
        for path, number, rest in self._numbered():
            is_torn = "orbax-checkpoint-tmp" in rest or (not rest and not self._is_whole(path))
            if rest.startswith("discarded") or is_torn:
                path.rmtree(missing_ok=True)
            elif not rest and ceiling is not None and number > ceiling:
                aside.append(("superseded", self._rename(number, "superseded")))
            elif rest:
                aside.append((rest.partition("-")[0], path))
            else:
                steps.append(number)
        quarantined = self._bound("quarantined", aside)
        self._bound("superseded", aside)
        return {"steps": steps, "quarantined": quarantined}

    def _require_ours(self, ceiling: int | None) -> None:
        """Refuse a directory whose newest step cannot be continued, before it is claimed.

        Whoever has begun there goes on: a job with another model must not end it.
        """
        found = [n for path, n, rest in self._numbered() if not rest and self._is_whole(path)]
        wanted = [n for n in found if ceiling is None or n <= ceiling]
        if wanted:
            _, finding = self._reader.inspect(max(wanted))
            if finding.kind is Kind.FOREIGN:
                raise CheckpointUnusableError(finding.text)

    def _numbered(self) -> list[tuple[epath.Path, int, str]]:
        """What is named like a step: path, step, and what follows the step's dot."""
        found = [(path, _STEP.fullmatch(path.name)) for path in self._directory.iterdir()]
        return [(path, int(match[1]), match[2] or "") for path, match in found if match]

    def _bound(self, kind: str, aside: Sequence[tuple[str, epath.Path]]) -> int:
        """Remove all but the newest steps put aside as this kind; returns how many are left."""
        # By the time at the end of their names.
        paths = sorted((p for k, p in aside if k == kind), key=lambda p: p.name.rpartition("-")[2])
        for path in paths[:-_ASIDE_KEPT]:
            path.rmtree(missing_ok=True)
        return len(paths[-_ASIDE_KEPT:])

    def all_bad(self, listing: Listing) -> CheckpointBadError:
        """The error for the case that nothing could be restored although there was something."""
        count = len(listing.steps) + listing.quarantined
        return CheckpointBadError(
            f"none of the {count} checkpoints in {self._directory} is good (none was removed): "
            "repair one, or start again in another directory"
        )

    def restore(self, step: int) -> Read:
        """The state at ``step``, or the proof that it is damaged.

        Raises:
            CheckpointUnusableError: it belongs to a model of other sizes, or to other data.
            CheckpointUnavailableError: it could not be read this time.
        """
        started = time.perf_counter()
        read = self._reader.read(step)
        if read.damage:
            say(
                self._world,
                f"checkpoint of step {step} is bad: {read.damage}; taking the next older one",
            )
            return read
        self._newest_good = step
        seconds = time.perf_counter() - started
        say(self._world, f"restored step {step} from {self._directory} in {seconds:.2f} s")
        return read

    def put_aside(self, steps: Sequence[int]) -> None:
        """Rename steps that are proven to be damaged, now that another one was restored.

        Raises:
            CheckpointUnavailableError: that cannot be done now.
        """
        if not steps:
            return
        failed = self._renamed_all(steps) if self._world.is_leader else ""
        # Nobody goes on before the names are gone, or a later save could meet them.
        if reason := agree(self._world, f"checkpoint/aside/{steps[0]}", failed)[0]:
            raise CheckpointUnavailableError(
                f"damaged checkpoints cannot be put aside in {self._directory}: {reason}"
            )

    def _renamed_all(self, steps: Sequence[int]) -> str:
        try:
            for step in steps:
                say(self._world, f"step {step} is kept as {self._rename(step, 'quarantined')}")
        except (OSError, ValueError) as error:
            return brief(error)
        return ""

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
            CheckpointUnavailableError: the directory cannot take it now; says why.
            SupersededError: a newer world has begun on the directory.
            SharedDirectoryError: another job has.
        """
        # The step itself may have failed, which is not the storage's fault, nor ours.
        jax.block_until_ready(shares)
        try:
            self._write(step, take, shares)
        except (OSError, ValueError, MemoryError, jax.errors.JaxRuntimeError) as error:
            if isinstance(error, jax.errors.JaxRuntimeError) and not is_exhausted(error):
                raise
            # A newer world may have removed what was being written: that is no outage.
            with contextlib.suppress(OSError, ValueError):
                self._claims.require()
            raise CheckpointUnavailableError(
                f"checkpoint of step {step} could not be written to {self._directory}: "
                f"{brief(error)}; those before it are kept: see that it has room and is reached"
            ) from error
        on_durable()
        if self._world.is_leader:
            try:
                self._discard_old()
            except (OSError, ValueError) as error:  # the next save tries again
                say(self._world, f"old checkpoints were not removed: {brief(error)}")

    def _write(self, step: int, take: Callable[[], Any], shares: jax.Array) -> None:
        self._claims.require()  # before it meets a newer world's files of this step
        path = self._path(step)
        if self._world.is_leader:
            self._clear(step)
        known = Contents(fingerprint(self._abstract), shares.shape[0], self._origin.now)

        def complete(place: epath.Path) -> None:
            contents.write(place, known)
            self._claims.require()

        trees = {STATE: take(), DIGEST: shares}
        storage.orbax().save(path, trees, self._world.num_processes, complete)
        if self._world.is_leader:
            self._require_written(path)
        self._newest_good = step

    def _clear(self, step: int) -> None:
        """Make room for a save: what an older world has left since, or a damaged step."""
        path = self._path(step)
        if not path.exists():
            return
        if self._is_whole(path):
            self._rename(step, "superseded")
        else:
            path.rmtree(missing_ok=True)

    def _require_written(self, path: epath.Path) -> None:
        """Look at what was committed: its files have to be as they were written."""
        if wrong := contents.damage(path, contents.read(path)):
            raise OSError(errno.EIO, f"committed files are not as written: {', '.join(wrong[:3])}")

    def _discard_old(self) -> None:
        """Remove all but the newest ``keep`` steps up to the newest that is known to be good.

        Steps above that one are another world's, and not counted: they may be worth nothing.
        """
        good = self._newest_good
        found = [n for path, n, rest in self._numbered() if not rest and self._is_whole(path)]
        ours = sorted(n for n in found if good is not None and n <= good)
        for step in ours[: -self._keep]:
            # Renamed first: a half-removed checkpoint must not look like one.
            gone = self._path(step) if self.is_in_bucket else self._rename(step, "discarded")
            gone.rmtree(missing_ok=True)

    def _is_whole(self, step: epath.Path) -> bool:
        """Whether a save of this step came to its end."""
        return not self.is_in_bucket or (step / storage.COMMITTED).exists()


#: Errors of a directory that somebody has to correct; all others may pass by themselves.
_LASTING = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
_LASTING |= {errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}


def require_writable(directory: str) -> None:
    """Fail early, and in words, when checkpoints could not be written.

    Raises:
        CheckpointUnusableError: names the directory and the user id.
        CheckpointUnavailableError: the storage has no room or does not answer.
    """
    if storage.is_in_bucket(directory):
        buckets = storage.buckets()
        if reason := buckets.why_not_writable(directory):
            is_away = buckets.is_away(reason)
            kind = CheckpointUnavailableError if is_away else CheckpointUnusableError
            raise kind(f"checkpoint directory {directory}: {reason}")
        return
    probe = epath.Path(directory) / f".writable-{os.getpid()}"
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.write_text("")
        probe.unlink(missing_ok=True)  # a process of another pod may have the same id
    except OSError as error:
        if error.errno not in _LASTING:
            raise CheckpointUnavailableError(
                f"checkpoint directory {directory} cannot be written now: {brief(error)}"
            ) from error
        raise CheckpointUnusableError(
            f"checkpoint directory {directory} is not writable by user id {os.geteuid()} "
            f"({error.strerror or error}): mount it writable for this user, or choose another"
        ) from error
