"""Batches depend on the step alone, and reach the devices of any world alike."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.trainer import feeder
from tests.trainer.corpus import all_rows, make_jsonl, make_text, quiet, texts_of
from tests.trainer.worlds import PATIENCE_S, ROOT, free_port, wait_until
from tpujob_data import DataError, pack
from tpujob_data.manifest import Manifest
from tpujob_data.pack import Recipe
from tpujob_data.rows import Rows
from tpujob_trainer import sharding, topology
from tpujob_trainer.loader import Batches, Feed, Prefetcher


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Packed text, 16 tokens a row."""
    source = make_text(tmp_path / "text")
    return pack.ensure_pack(Recipe(str(source), (16,)), tmp_path / "pack", quiet)


@pytest.fixture
def bucketed(tmp_path: Path) -> Manifest:
    """Documents of many lengths in rows of 16, 32 and 64."""
    source = make_jsonl(tmp_path / "d.jsonl", ["word " * (i % 23) for i in range(500)])
    return pack.ensure_pack(Recipe(str(source), (16, 32, 64)), tmp_path / "buckets", quiet)


@pytest.fixture(params=["manifest", "bucketed"])
def any_pack(request: pytest.FixtureRequest) -> Manifest:
    """A pack of each kind."""
    made: Manifest = request.getfixturevalue(request.param)
    return made


def _whole(batches: Batches, step: int) -> Rows:
    return batches.rows(step, range(batches.place(step).size))


def test_batch_is_a_pure_function_of_the_step(any_pack: Manifest) -> None:
    """Reading steps in any order, or anew, gives the same rows."""
    one = Batches(any_pack, seed=5, global_batch=4)
    two = Batches(any_pack, seed=5, global_batch=4)
    forwards = [_whole(one, step) for step in range(1, 80)]
    backwards = [_whole(two, step) for step in reversed(range(1, 80))][::-1]
    for a, b in zip(forwards, backwards, strict=True):
        assert np.array_equal(a.tokens, b.tokens)
        assert np.array_equal(a.segments, b.segments)


def test_an_epoch_shows_every_row_once_and_the_next_another_order(manifest: Manifest) -> None:
    """The shuffle is a permutation that changes with the epoch and the seed."""
    batches = Batches(manifest, seed=5, global_batch=manifest.rows)
    first, second = (_whole(batches, step).tokens for step in (1, 2))
    other = _whole(Batches(manifest, seed=6, global_batch=manifest.rows), 1).tokens
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other)
    assert not np.array_equal(second, other)
    rows = sorted(texts_of(all_rows(manifest)))
    for epoch in (first, second, other):
        assert sorted(bytes(row) for row in epoch.astype(np.uint8)) == rows


def test_buckets_come_by_their_share_and_show_every_row(bucketed: Manifest) -> None:
    """A bucket's steps walk through its rows without a gap, at the same tokens a step."""
    batches = Batches(bucketed, seed=5, global_batch=4)
    places = [batches.place(step) for step in range(1, 400)]
    assert {place.length for place in places} == {16, 32, 64} == set(batches.lengths)
    assert {place.length * place.size for place in places} == {4 * 64}
    for bucket in bucketed.buckets:
        mine = [place for place in places if place.length == bucket.length]
        assert [place.first for place in mine] == [at * mine[0].size for at in range(len(mine))]
        share = bucket.rows * bucket.length / sum(b.rows * b.length for b in bucketed.buckets)
        assert abs(len(mine) / len(places) - share) < 0.1


def test_buckets_are_mixed(bucketed: Manifest) -> None:
    """Rows of one length do not come in one go, and another seed mixes otherwise."""
    orders = [
        [Batches(bucketed, seed=seed, global_batch=1).place(step).length for step in range(1, 60)]
        for seed in (1, 2)
    ]
    assert orders[0] != orders[1]
    assert sum(a != b for a, b in zip(orders[0], orders[0][1:], strict=False)) > 10


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (1, 4, 1, 2), (2, 2, 1, 2), (1, 2, 4, 1), (2, 1, 2, 2), (8, 1, 1, 1)]
)
def test_batch_is_the_same_for_every_world(manifest: Manifest, shape: tuple[int, ...]) -> None:
    """However the devices are arranged, step 7 trains on the same rows in the same order."""
    batches = Batches(manifest, seed=5, global_batch=8)
    sizes = dict(zip(sharding.AXES, shape, strict=True))
    mesh = topology.make_mesh(sizes, jax.devices()[: math.prod(shape)])
    split = sharding.named(mesh, "batch", None)
    abstract = jax.ShapeDtypeStruct((8, 17), np.int32, sharding=split)
    expected = batches.rows(7, range(8))
    assert np.array_equal(Feed(batches, {16: abstract}).batch(7)[1], expected.tokens)
    length, rows = Feed(batches, {16: Rows(abstract, abstract)}).batch(7)
    assert length == 16
    assert np.array_equal(rows.segments, expected.segments)
    assert rows.tokens.sharding == split


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_batch_is_the_same_for_every_number_of_processes(
    manifest: Manifest, processes: int
) -> None:
    """Real worlds of 1, 2 and 4 processes hold the same rows in the same order."""
    address = f"127.0.0.1:{free_port()}"
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT / 'trainer'}:{ROOT}",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={4 // processes}",
    }
    command = [sys.executable, "-m", "tests.trainer.feeder", str(manifest.folder), address]
    world = [
        subprocess.Popen(
            [*command, str(processes), str(index)],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(processes)
    ]
    try:
        outputs = [child.communicate(timeout=PATIENCE_S)[0] for child in world]
    finally:
        for child in world:
            child.kill()
    assert [child.returncode for child in world] == [0] * processes
    seen = [json.loads(line) for output in outputs for line in output.splitlines()]
    batches = Batches(manifest, seed=5, global_batch=feeder.GLOBAL_BATCH)
    for step in feeder.STEPS:
        expected = batches.rows(step, range(feeder.GLOBAL_BATCH)).tokens.tolist()
        mine = [(row, tokens) for at, row, tokens in seen if at == step]
        # Each row is on two devices.
        assert sorted(row for row, _ in mine) == sorted([*range(feeder.GLOBAL_BATCH)] * 2)
        assert all(tokens == expected[row] for row, tokens in mine)


def _single(width: int) -> jax.ShapeDtypeStruct:
    mesh = topology.make_mesh(dict.fromkeys(sharding.AXES, 1), jax.devices()[:1])
    return jax.ShapeDtypeStruct((4, width), np.int32, sharding=sharding.named(mesh))


def test_prefetcher_yields_steps_in_order_and_stops(manifest: Manifest) -> None:
    """The loop gets exactly the steps it asked for, and can end early."""
    batches = Batches(manifest, seed=5, global_batch=4)
    feed = Feed(batches, {16: _single(17)})
    seen = list(Prefetcher(feed, range(3, 6)))
    assert [batch.step for batch in seen] == [3, 4, 5]
    assert all(np.array_equal(b.rows, batches.rows(b.step, range(4)).tokens) for b in seen)
    early = Prefetcher(feed, range(1, 1000))
    next(iter(early))
    early.stop()
    wait_until(lambda: not early._thread.is_alive(), "the thread's end")


def test_prefetcher_passes_errors_on(manifest: Manifest) -> None:
    """An error while reading reaches the loop instead of ending a thread in silence."""
    batches = Batches(manifest, seed=5, global_batch=4)
    with pytest.raises(ValueError, match="shape"):
        next(iter(Prefetcher(Feed(batches, {16: _single(99)}), range(1, 3))))


def test_damaged_row_is_no_other_row(manifest: Manifest) -> None:
    """Wherever a bit is flipped, rows are as packed or the answer names the file."""
    path = manifest.folder / manifest.shards[0].file
    content = path.read_bytes()
    which = range(manifest.rows)
    expected = Batches(manifest, seed=5, global_batch=manifest.rows).rows(1, which)
    told = []
    for bit in random.Random(0).sample(range(8 * len(content)), 60):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            rows = Batches(manifest, seed=5, global_batch=manifest.rows).rows(1, which)
        except DataError as error:
            told.append(str(error))
        else:
            assert np.array_equal(rows.tokens, expected.tokens)
            assert np.array_equal(rows.segments, expected.segments)
    assert told
    assert all(path.name in text for text in told)
