"""Packing is deterministic and atomic; batches depend on the step alone."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from array_record.python import array_record_module

from tests.trainer.worlds import ROOT, wait_until
from tpujob_trainer import sharding, topology
from tpujob_trainer.data import pack
from tpujob_trainer.data.loader import Batches, Prefetcher
from tpujob_trainer.data.pack import DataError, Manifest, Recipe


def _quiet(_text: str) -> None:
    """Progress nobody reads."""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A directory with text, a binary file, and other people's packages."""
    root = tmp_path / "text"
    (root / "deep").mkdir(parents=True)
    (root / "site-packages").mkdir()
    (root / "b.txt").write_bytes(b"second document " * 40)
    (root / "a.txt").write_bytes(b"first document " * 40)
    (root / "deep" / "c.txt").write_bytes(b"third document " * 40)
    (root / "binary").write_bytes(b"\x7fELF\0\0\0" * 100)
    (root / "site-packages" / "d.txt").write_bytes(b"not ours " * 100)
    return root


@pytest.fixture
def manifest(text: Path, tmp_path: Path) -> Manifest:
    """The packed text, 16 tokens a row."""
    return pack.ensure_pack(Recipe(str(text), 16, 10_000), tmp_path / "data", _quiet)


def test_packing_twice_gives_the_same_bytes(text: Path, tmp_path: Path) -> None:
    """Every host may pack for itself: all files of the pack are equal."""
    recipe = Recipe(str(text), 16, 10_000)
    digests = []
    for folder in ("one", "two"):
        made = pack.ensure_pack(recipe, tmp_path / folder, _quiet)
        files = sorted(made.path.parent.iterdir())
        digests.append([(f.name, hashlib.sha256(f.read_bytes()).hexdigest()) for f in files])
    assert digests[0] == digests[1]


def test_rows_hold_the_text_in_order_and_overlap_by_one(manifest: Manifest, text: Path) -> None:
    """Rows side by side are the documents, each ended by NUL; binaries are left out."""
    whole = b"".join(
        (text / name).read_bytes() + b"\0" for name in ("a.txt", "b.txt", "deep/c.txt")
    )
    rows = _all_rows(manifest)
    assert len(rows) == (len(whole) - 1) // 16 == manifest.rows
    for number, row in enumerate(rows):
        assert row == whole[number * 16 : number * 16 + 17]


def _all_rows(manifest: Manifest) -> list[bytes]:
    reader = array_record_module.ArrayRecordReader(str(manifest.path))
    return list(reader.read_all())


def test_max_bytes_cuts_the_text(text: Path, tmp_path: Path) -> None:
    """No more text than asked for is packed."""
    made = pack.ensure_pack(Recipe(str(text), 16, 100), tmp_path / "data", _quiet)
    assert made.rows == (100 - 1) // 16


@pytest.mark.parametrize("content", [None, b"short"])
def test_missing_or_short_text_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    """No text, or less than one row, is said in words; no half pack stays behind."""
    source = tmp_path / "source"
    if content:
        source.mkdir()
        (source / "a.txt").write_bytes(content)
    with pytest.raises(DataError, match=r"neither stdlib nor a directory|less text than one row"):
        pack.ensure_pack(Recipe(str(source), 16, 100), tmp_path / "data", _quiet)
    assert [p.name for p in (tmp_path / "data").iterdir() if "packing" in p.name] == []


def test_unusable_directory_is_named(text: Path, tmp_path: Path) -> None:
    """A data directory that cannot be made is an error that names it and the user."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/data cannot be used by user id \d+"):
        pack.ensure_pack(Recipe(str(text), 16, 100), tmp_path / "file" / "data", _quiet)


def test_many_processes_pack_once(text: Path, tmp_path: Path) -> None:
    """Of several processes that need the same pack one makes it, and all use it."""
    code = "import sys; from tpujob_trainer.data.pack import main; sys.exit(main())"
    command = [
        sys.executable, "-c", code, "pack", "--source", str(text),
        "--out", str(tmp_path / "data"), "--sequence-length", "16",
    ]  # fmt: skip
    children = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, env={"PYTHONPATH": str(ROOT / "trainer")}, text=True
        )
        for _ in range(4)
    ]
    outputs = [child.communicate(timeout=120)[0] for child in children]
    assert [child.returncode for child in children] == [0] * 4
    assert len({output.splitlines()[-1] for output in outputs}) == 1
    assert sum("packed" in output for output in outputs) == 1


def test_stdlib_is_real_text(tmp_path: Path) -> None:
    """The default source is this Python's own library, named after its version."""
    recipe = Recipe("stdlib", 64, 50_000)
    made = pack.ensure_pack(recipe, tmp_path, _quiet)
    assert made.rows == (50_000 - 1) // 64
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in recipe.name
    assert b"import" in b"".join(_all_rows(made))


def test_batch_is_a_pure_function_of_the_step(manifest: Manifest) -> None:
    """Reading steps in any order, or anew, gives the same rows."""
    one = Batches(manifest, seed=5, global_batch=4)
    two = Batches(manifest, seed=5, global_batch=4)
    forwards = [one.rows(step, range(4)) for step in range(1, 40)]
    backwards = [two.rows(step, range(4)) for step in reversed(range(1, 40))][::-1]
    assert all(np.array_equal(a, b) for a, b in zip(forwards, backwards, strict=True))


def test_an_epoch_shows_every_row_once_and_the_next_another_order(manifest: Manifest) -> None:
    """The shuffle is a permutation that changes with the epoch and the seed."""
    batches = Batches(manifest, seed=5, global_batch=manifest.rows)
    first, second = (batches.rows(step, range(manifest.rows)) for step in (1, 2))
    other = Batches(manifest, seed=6, global_batch=manifest.rows).rows(1, range(manifest.rows))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other)
    rows = sorted(_all_rows(manifest))
    for epoch in (first, second, other):
        assert sorted(bytes(row) for row in epoch.astype(np.uint8)) == rows


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 4, 2), (2, 2, 2), (2, 4, 1), (8, 1, 1)])
def test_batch_is_the_same_for_every_world(manifest: Manifest, shape: tuple[int, ...]) -> None:
    """However the devices are arranged, step 7 trains on the same tokens in the same order."""
    batches = Batches(manifest, seed=5, global_batch=8)
    sizes = dict(zip(sharding.AXES, shape, strict=True))
    mesh = topology.make_mesh(sizes, jax.devices()[: math.prod(shape)])
    split = sharding.named(mesh, "batch", None)
    abstract = jax.ShapeDtypeStruct((8, 17), np.int32, sharding=split)
    assert np.array_equal(batches.on_devices(7, abstract), batches.rows(7, range(8)))


def test_prefetcher_yields_steps_in_order_and_stops(manifest: Manifest) -> None:
    """The loop gets exactly the steps it asked for, and can end early."""
    batches = Batches(manifest, seed=5, global_batch=4)
    mesh = topology.make_mesh({"slice": 1, "fsdp": 1, "tensor": 1}, jax.devices()[:1])
    abstract = jax.ShapeDtypeStruct((4, 17), np.int32, sharding=sharding.named(mesh))
    seen = list(Prefetcher(batches, abstract, range(3, 6)))
    assert [step for step, _, _ in seen] == [3, 4, 5]
    assert all(np.array_equal(rows, batches.rows(step, range(4))) for step, rows, _ in seen)
    early = Prefetcher(batches, abstract, range(1, 1000))
    next(iter(early))
    early.stop()
    wait_until(lambda: not early._thread.is_alive(), "the thread's end")


def test_prefetcher_passes_errors_on(manifest: Manifest) -> None:
    """An error while reading reaches the loop instead of ending a thread in silence."""
    batches = Batches(manifest, seed=5, global_batch=4)
    mesh = topology.make_mesh({"slice": 1, "fsdp": 1, "tensor": 1}, jax.devices()[:1])
    too_wide = jax.ShapeDtypeStruct((4, 99), np.int32, sharding=sharding.named(mesh))
    with pytest.raises(ValueError, match="shape"):
        next(iter(Prefetcher(batches, too_wide, range(1, 3))))
