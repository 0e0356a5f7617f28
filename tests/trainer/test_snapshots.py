"""Snapshots in memory: whole or not there, bounded, and never one of something else."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.victims import Rig, small_files
from tpujob_checkpoint import programs, saving, snapshots
from tpujob_checkpoint.snapshots import Bytes, SnapshotBadError, SnapshotStore

DIGESTS = [[1, 2**32 - 1]]


def _blocks(step: int) -> list[Bytes]:
    sizes = (5000, 1, 4096)
    return [np.full(size, step % 251, np.uint8) for size in sizes]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SnapshotStore]:
    """Snapshots of steps 3 and 7."""
    made = SnapshotStore(tmp_path, "f")
    for step in (3, 7):
        made.write(step, _blocks(step), DIGESTS)
    yield made
    made.close()


@contextlib.contextmanager
def _next_start(store: SnapshotStore, fingerprint: str = "f") -> Iterator[SnapshotStore]:
    """What the process after this one finds."""
    store.close()
    with contextlib.closing(SnapshotStore(store._directory, fingerprint)) as following:
        yield following


def test_newest_two_are_kept_and_come_back_as_written(store: SnapshotStore) -> None:
    """Memory is bounded by two snapshots, whose bytes and digests are what was given."""
    store.write(12, _blocks(12), DIGESTS)
    assert store.steps() == [7, 12]
    index, blocks = store.read(12)
    assert (index.step, index.digests) == (12, DIGESTS)
    assert all(np.array_equal(a, b) for a, b in zip(blocks, _blocks(12), strict=True))


@given(st.lists(st.integers(0, 3 * 4096), max_size=8))
def test_blocks_start_at_pages_and_do_not_overlap(lengths: list[int]) -> None:
    """Every block begins at a multiple of the page size, after the end of the one before."""
    offsets = snapshots.block_offsets(lengths)
    ends = [0, *(at + length for at, length in zip(offsets, lengths, strict=True))]
    assert all(at % 4096 == 0 and at >= end for at, end in zip(offsets, ends, strict=False))


def test_another_run_finds_nothing_and_frees_the_memory(
    tmp_path: Path, store: SnapshotStore
) -> None:
    """Snapshots of other sizes, of another world or configuration are of no use to anybody."""
    with _next_start(store, "another") as other:
        assert other.steps() == []
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_second_process_is_refused(tmp_path: Path, store: SnapshotStore) -> None:
    """Two processes in one directory would delete each other's snapshots."""
    with pytest.raises(OSError, match="another process keeps its snapshots there"):
        SnapshotStore(tmp_path, "f")
    assert store.steps() == [3, 7]


@pytest.mark.parametrize("left", [0, 1, 4000, 12_000])
def test_torn_snapshot_is_put_aside_and_the_older_one_stays(
    tmp_path: Path, store: SnapshotStore, left: int
) -> None:
    """However little was written under the final name, it is seen and named at the next start."""
    os.truncate(tmp_path / "7.snapshot", left)
    with _next_start(store) as again:
        assert again.steps() == [3]
        assert "is torn" in again.faults[7]
    assert (tmp_path / "7.quarantined").stat().st_size == left


def test_only_one_bad_snapshot_takes_memory(tmp_path: Path, store: SnapshotStore) -> None:
    """The newest one that was put aside is kept for whoever wants to know, no more."""
    store.quarantine(7)
    store.quarantine(3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3.quarantined", "lock"]


def test_future_that_will_not_be_is_forgotten(store: SnapshotStore) -> None:
    """After a restart from step 5, step 7 of the former course must not come back."""
    store.discard_above(5)
    assert store.steps() == [3]


def test_write_that_fails_leaves_what_was_there(tmp_path: Path, store: SnapshotStore) -> None:
    """A full volume costs the new snapshot, neither of the old ones, and no room."""
    blocks = _blocks(12)
    with small_files(), pytest.raises(OSError, match="too large"):
        store.write(12, blocks, DIGESTS)
    assert store.steps() == [3, 7]
    assert store.read(7)[0].step == 7
    assert list(tmp_path.glob("*.tmp")) == []


def test_snapshot_under_a_wrong_name_is_refused(tmp_path: Path, store: SnapshotStore) -> None:
    """The step is part of what is checked, not only of the name."""
    (tmp_path / "3.snapshot").rename(tmp_path / "9.snapshot")
    with pytest.raises(SnapshotBadError, match="holds step 3"):
        store.read(9)


def test_room_is_for_two_and_one_in_the_making(tmp_path: Path) -> None:
    """What would not fit is not begun; what is there already counts as room."""
    volume = os.statvfs(tmp_path)
    free = volume.f_bavail * volume.f_frsize
    assert snapshots.why_no_room(tmp_path, 1000) == ""
    assert f"{tmp_path} has" in snapshots.why_no_room(tmp_path, free // 2)


@pytest.mark.parametrize(
    ("limit", "used", "cache", "expected"),
    [("max", 10, 0, None), ("100", 60, 0, 40), ("100", 90, 50, 60)],
)
def test_memory_limit_is_read_without_the_page_cache(
    tmp_path: Path, limit: str, used: int, cache: int, expected: int | None
) -> None:
    """Cached files give way to snapshots; no limit is no bound."""
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\nactive_file 0\n")
    assert snapshots._free_of_cgroup(tmp_path) == expected
    assert snapshots._free_of_cgroup(tmp_path / "none") is None


def test_newest_step_wins_and_memory_among_equals() -> None:
    """Of equal steps the one in memory is read: it is faster, and checked as well."""
    order = saving.newest_first([50, 55], [40, 50, 60])
    assert order == [(60, False), (55, True), (50, True), (50, False), (40, False)]


@pytest.mark.parametrize(
    ("stats", "needed", "expected"),
    [
        (None, 10**12, math.inf),  # CPU: there is no memory but the host's
        ({}, 10**12, math.inf),
        ({"bytes_limit": 100, "bytes_in_use": 30, "peak_bytes_in_use": 60}, 40, 1),
        ({"bytes_limit": 100, "bytes_in_use": 30, "peak_bytes_in_use": 61}, 40, 0),
    ],
)
def test_copy_on_the_device_leaves_room_for_a_step(
    stats: dict[str, int] | None, needed: int, expected: float
) -> None:
    """What a step needs at its peak is not given to a snapshot."""
    assert saving.room(stats, needed) == expected


def test_without_room_on_the_devices_snapshots_go_through_the_hosts_memory(
    tmp_path: Path,
) -> None:
    """Both tiers' come back bit for bit; CPUs always have room, so it is said that they do not."""
    rig = Rig(tmp_path)
    with contextlib.closing(rig.saver()) as saver:
        saver.restore(None)
        saver._room = 0
        rig.save(saver, 4, local=False)
        rig.save(saver, 9, durable=False)
        assert not saver._copies
    for step, directory in ((9, rig.snapshots), (4, rig.checkpoints)):
        with contextlib.closing(rig.saver()) as later:
            restored = later.restore(None)
            assert restored.step == step
            assert rig.is_state_of(step, restored.state)
        shutil.rmtree(directory)


def test_bytes_per_device_follow_the_sharding() -> None:
    """Split arrays count by their shard, copies in full."""
    mesh = jax.make_mesh((4,), ("x",), devices=jax.devices()[:4])
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    tree = [
        jax.ShapeDtypeStruct((8, 3), jnp.float32, sharding=split),
        jax.ShapeDtypeStruct((5,), jnp.bfloat16, sharding=whole),
    ]
    assert programs.bytes_per_device(tree) == 8 * 3 * 4 // 4 + 5 * 2
