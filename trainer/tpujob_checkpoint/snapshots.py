"""Tier 1: the newest states of one process as files in memory that outlives the process.

A file ``<step>.snapshot`` holds this process's own shards of every leaf as raw bytes, each
block at a multiple of the page size, and at its end the index: step, fingerprint, digests,
and place and checksum of each block. It is written under a temporary name and renamed, so
that a killed writer leaves none that looks complete. Nothing is flushed: the directory is
memory, and lives exactly as long as the pod.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import mmap
import os
import struct
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

KEEP = 2
#: Threads that copy and check blocks: memory copies and CRC-32 run without Python's lock.
THREADS = 8
#: Memory that must stay free beside the snapshots, for everything else in the pod.
MARGIN_BYTES = 64 << 20
_SUFFIX = ".snapshot"
_END = struct.Struct("=QI8s")  # length and CRC-32 of the index, magic
_MAGIC = b"TPUJOBS1"
_CGROUP = Path("/sys/fs/cgroup")

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


class SnapshotBadError(RuntimeError):
    """A snapshot that is torn, damaged, or of something else."""


@dataclasses.dataclass(frozen=True, slots=True)
class Index:
    """What is known of a snapshot without reading its blocks.

    Attributes:
        step: the step after which it was taken.
        fingerprint: of everything that must be equal for it to be loaded.
        digests: one row for each device of this process, see ``digest.make_shares``.
        blocks: offset, length in bytes and CRC-32 of each block.
        origin: what the state was trained with, see ``origin.Origin``.
    """

    step: int
    fingerprint: str
    digests: list[list[int]]
    blocks: list[tuple[int, int, int]]
    origin: dict[str, Any] = dataclasses.field(default_factory=dict)


class SnapshotStore:
    """The snapshots in one directory, which belongs to this process alone while it lives."""

    def __init__(self, directory: Path, fingerprint: str) -> None:
        """Take the directory over and clear what no start of this fingerprint can use.

        Raises:
            OSError: it cannot be used, or another process uses it.
        """
        self._directory, self._fingerprint = directory, fingerprint
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = (directory / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise OSError(error.errno, "another process keeps its snapshots there") from error
        self.faults: dict[int, str] = {}
        for path in directory.iterdir():
            if path.suffix == ".tmp":
                path.unlink()
            elif path.suffix == _SUFFIX:
                self._judge(path)

    def _judge(self, path: Path) -> None:
        try:
            if read_index(path).fingerprint != self._fingerprint:
                path.unlink()
        except SnapshotBadError as error:
            self.faults[_step_of(path)] = str(error)
            self._put_aside(path)
        except OSError as error:  # says nothing about what is in it
            self.faults[_step_of(path)] = f"cannot be read now: {error}"

    def close(self) -> None:
        """Let another process have the directory."""
        self._lock.close()

    def steps(self) -> list[int]:
        """Steps whose snapshots look complete, in ascending order."""
        return sorted(int(path.stem) for path in self._directory.glob(f"*{_SUFFIX}"))

    def write(
        self,
        step: int,
        blocks: Sequence[Bytes],
        digests: list[list[int]],
        origin: dict[str, Any] | None = None,
    ) -> float:
        """Keep a snapshot, and drop all but the newest KEEP.

        Returns:
            Processor time of the threads that copied the blocks, seconds.

        Raises:
            Exception: there is no room, say; what was there before is still there.
        """
        target = self._path(step)
        temporary = target.with_suffix(".tmp")
        known = {"step": step, "fingerprint": self._fingerprint, "digests": digests}
        try:
            with temporary.open("wb") as file:
                cpu_s = self._fill(file.fileno(), blocks, known | {"origin": origin or {}})
            temporary.rename(target)
        except Exception:  # whatever it is: half a file would hold memory until the next start
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        for old in self.steps()[:-KEEP]:
            self._path(old).unlink()
        return cpu_s

    def _fill(self, file: int, blocks: Sequence[Bytes], known: dict[str, Any]) -> float:
        offsets = block_offsets([block.nbytes for block in blocks])
        with ThreadPoolExecutor(THREADS) as pool:
            written = list(pool.map(lambda b, at: _put(file, b, at), blocks, offsets))
        lengths = [block.nbytes for block in blocks]
        sums = [checksum for checksum, _ in written]
        places = list(zip(offsets, lengths, sums, strict=True))
        body = json.dumps(known | {"blocks": places}).encode()
        end = body + _END.pack(len(body), zlib.crc32(body), _MAGIC)
        _put(file, np.frombuffer(end, np.uint8), offsets[-1] + lengths[-1] if blocks else 0)
        return sum(cpu_s for _, cpu_s in written)

    def read(self, step: int) -> tuple[Index, list[Bytes]]:
        """A snapshot's index and its blocks, mapped and with their checksums verified.

        Raises:
            SnapshotBadError: it is damaged; says what.
        """
        path = self._path(step)
        index = read_index(path)
        if (index.step, index.fingerprint) != (step, self._fingerprint):
            raise SnapshotBadError(f"holds step {index.step} of another run or world")
        with path.open("rb") as file:
            mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        blocks = [mapped[at : at + length] for at, length, _ in index.blocks]
        with ThreadPoolExecutor(THREADS) as pool:
            sums = list(pool.map(lambda block: zlib.crc32(block.data), blocks))
        bad = [n for n, place in enumerate(index.blocks) if place[2] != sums[n]]
        if bad:
            raise SnapshotBadError(f"checksum differs in {len(bad)} blocks, first block {bad[0]}")
        return index, blocks

    def quarantine(self, step: int) -> Path:
        """Put a bad snapshot aside; only the last one stays, for memory is scarce."""
        return self._put_aside(self._path(step))

    def _put_aside(self, path: Path) -> Path:
        for older in self._directory.glob("*.quarantined"):
            older.unlink()
        return path.rename(path.with_suffix(".quarantined"))

    def discard_above(self, step: int) -> None:
        """Forget snapshots of a future that is not going to be."""
        for newer in self.steps():
            if newer > step:
                self._path(newer).unlink()

    def _path(self, step: int) -> Path:
        return self._directory / f"{step}{_SUFFIX}"


def _step_of(path: Path) -> int:
    return int(path.stem) if path.stem.isdecimal() else 0


def block_offsets(lengths: Sequence[int]) -> list[int]:
    """Where each block starts: one after the other, at multiples of the page size."""
    offsets, at = [], 0
    for length in lengths:
        offsets.append(at)
        at += -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
    return offsets


def _put(file: int, block: Bytes, offset: int) -> tuple[int, float]:
    """Write all of a block; returns its checksum, and the processor time it took."""
    began, left = time.thread_time(), block.data
    while left:
        written = os.pwrite(file, left, offset)
        left, offset = left[written:], offset + written
    return zlib.crc32(block.data), time.thread_time() - began


def read_index(path: Path) -> Index:
    """The index at the end of a snapshot.

    Raises:
        SnapshotBadError: it is torn or damaged.
        OSError: it cannot be read now.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _END.size))
            length, checksum, magic = _END.unpack(file.read().rjust(_END.size, b"\0"))
            if magic != _MAGIC or length > size:
                raise SnapshotBadError("is torn: it has no index at its end")
            file.seek(size - _END.size - length)
            body = file.read(length)
    except FileNotFoundError as error:
        raise SnapshotBadError("is missing") from error
    if zlib.crc32(body) != checksum:
        raise SnapshotBadError("index is damaged")
    values: dict[str, Any] = json.loads(body)
    blocks = [(at, length, crc) for at, length, crc in values.pop("blocks")]
    return Index(blocks=blocks, **values)


def why_no_room(directory: Path, snapshot_bytes: int) -> str:
    """Why the directory cannot take KEEP snapshots and one in the making; empty: it can."""
    there = sum(p.stat().st_size for p in directory.iterdir() if p.is_file())
    wanted = (KEEP + 1) * snapshot_bytes + MARGIN_BYTES - there
    volume = os.statvfs(directory)
    free = volume.f_bavail * volume.f_frsize
    if free < wanted:
        return f"{directory} has {_mib(free)} free and {_mib(wanted)} are needed"
    memory = _free_of_cgroup(_CGROUP)
    if memory is not None and memory < wanted:
        return f"the memory limit leaves {_mib(memory)} and {_mib(wanted)} are needed"
    return ""


def _free_of_cgroup(group: Path) -> int | None:
    """Bytes below this container's memory limit; None: no limit."""
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        if limit == "max":
            return None
        lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
        stat = {name: int(count) for name, count in (line.split() for line in lines)}
        used = int((group / "memory.current").read_text(encoding="ascii"))
        # The page cache counts as used, and gives way. Files in memory are not in it.
        return int(limit) - used + stat["inactive_file"] + stat["active_file"]
    except (OSError, ValueError, KeyError):
        return None


def _mib(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"
