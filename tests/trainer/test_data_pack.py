"""A pack depends on its input alone: not on workers, kills or the machine."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.corpus import all_rows, files_of, make_jsonl, make_text, quiet, texts_of
from tests.trainer.worlds import ROOT, wait_until
from tpujob_data import DataError, pack, sources
from tpujob_data.manifest import Manifest, find_packs, read_manifest, verify
from tpujob_data.pack import Recipe
from tpujob_data.packing import Bucketer, Splitter
from tpujob_data.rows import Layout
from tpujob_trainer import config as configs
from tpujob_trainer import loader

COMMAND = [sys.executable, "-m", "tpujob_data.cli"]
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "trainer")}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A directory of text."""
    return make_text(tmp_path / "text")


@pytest.fixture
def manifest(text: Path, tmp_path: Path) -> Manifest:
    """The packed text, 16 tokens a row."""
    return pack.ensure_pack(Recipe(str(text), (16,)), tmp_path / "corpus" / "16", quiet)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 4 kB, so that a small corpus has many."""
    monkeypatch.setattr(sources, "_PART_BYTES", 4096)


def test_rows_hold_the_text_in_order_and_overlap_by_one(manifest: Manifest, text: Path) -> None:
    """Rows side by side are the documents, each ended by NUL; binaries are left out."""
    names = ("a.txt", "b.txt", "deep/c.txt")
    whole = b"".join((text / name).read_bytes() + b"\0" for name in names)
    rows = texts_of(all_rows(manifest))
    assert len(rows) == (len(whole) - 1) // 16 == manifest.rows
    for number, row in enumerate(rows):
        assert row == whole[number * 16 : number * 16 + 17]
    assert (manifest.documents, manifest.skipped, manifest.tokens) == (3, 1, len(whole))


def test_segments_change_where_documents_begin(manifest: Manifest) -> None:
    """Segment numbers grow by one right after each end of a document."""
    rows = all_rows(manifest)
    ends = rows.tokens[:, :-1] == 0
    assert np.array_equal(np.diff(rows.segments, axis=1), ends.astype(np.int32))
    assert np.all(rows.segments[:, 0] == 1)


@given(
    st.lists(st.integers(1, 40), max_size=20),
    st.integers(2, 12),
)
def test_splitting_makes_every_token_a_target_once(sizes: list[int], length: int) -> None:
    """Targets side by side are the stream without its first token and an incomplete end."""
    counter = itertools.count(1)
    documents = [np.asarray([next(counter) for _ in range(n)], np.uint32) for n in sizes]
    splitter = Splitter(length)
    blocks = [b for document in documents for b in splitter.add(document)]
    blocks += splitter.finish()
    targets = [int(t) for block in blocks for row in block.tokens_RxM for t in row[1:]]
    rest, _ = splitter.rest()
    assert targets + [int(t) for t in rest[1:]] == list(range(2, sum(sizes) + 1))
    assert len(rest) <= length


@given(
    st.lists(st.integers(1, 100), max_size=30),
    st.sets(st.integers(2, 30), min_size=2, max_size=4),
)
def test_buckets_hold_every_target_in_the_shortest_row(sizes: list[int], lengths: set[int]) -> None:
    """Only a document's first token is no target, and no shorter bucket would hold a row."""
    counter = itertools.count(1)
    documents = [np.asarray([next(counter) for _ in range(n)], np.uint32) for n in sizes]
    bucketer = Bucketer(sorted(lengths))
    blocks = [b for document in documents for b in bucketer.add(document)]
    blocks += bucketer.finish()
    targets = []
    for block in blocks:
        for row, used in zip(block.tokens_RxM, block.used_R, strict=True):
            targets += [int(t) for t in row[1:used]]
            assert not any(used - 1 <= shorter < block.length for shorter in lengths)
    firsts = {int(document[0]) for document in documents}
    assert sorted(targets) == sorted(set(range(1, sum(sizes) + 1)) - firsts)


@given(st.integers(2, 40), st.sampled_from([256, 50_000, 128_256]), st.integers(0, 2**32 - 1))
def test_rows_survive_their_encoding(length: int, vocab: int, seed: int) -> None:
    """Tokens, borders and padding come back, whatever the width of a token."""
    random = np.random.default_rng(seed)
    tokens = random.integers(0, vocab, (5, length + 1), dtype=np.uint32)
    starts = random.random(tokens.shape) < 0.3
    used = random.integers(1, length + 2, 5, dtype=np.uint32)
    layout = Layout(length, vocab)
    records = [record.tobytes() for record in layout.encode(tokens, starts, used)]
    assert {len(record) for record in records} == {layout.record_bytes}
    rows = layout.decode(records)
    assert np.array_equal(rows.tokens, tokens)
    starts[:, 0] = True
    inside = np.arange(length + 1) < used[:, None]
    assert np.array_equal(rows.segments, np.cumsum(starts, axis=1) * inside)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("lengths", [(64,), (16, 32, 64)])
def test_workers_do_not_change_the_bytes(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    """One process and three make the same files of many parts."""
    source = make_jsonl(tmp_path / "d.jsonl", [f"document {i} " * (i % 40) for i in range(300)])
    recipe = Recipe(str(source), lengths)
    one = pack.ensure_pack(recipe, tmp_path / "one", quiet, workers=1)
    three = pack.ensure_pack(recipe, tmp_path / "three", quiet, workers=3)
    assert len(one.shards) > 10
    assert files_of(one.folder) == files_of(three.folder)


@pytest.mark.usefixtures("small_parts")
def test_parts_lose_nothing(tmp_path: Path) -> None:
    """Cutting the input in parts loses less than one row over the whole corpus."""
    texts = [f"document {i} " * (i % 40) for i in range(300)]
    source = make_jsonl(tmp_path / "d.jsonl", texts)
    made = pack.ensure_pack(Recipe(str(source), (64,)), tmp_path / "pack", quiet)
    assert made.documents == sum(map(bool, texts))
    assert made.tokens == sum(len(text) + 1 for text in texts if text)
    parts = len(sources.find(str(source)).parts)
    targets = sum(shard.targets for shard in made.shards)
    # The first token of the corpus is no target; that of a part's rest is one for the second time.
    assert made.tokens - 1 <= targets + made.dropped <= made.tokens + parts
    assert made.dropped <= 64


def _big_corpus(tmp_path: Path) -> Path:
    """A corpus of 6 parts at their usual size."""
    line = json.dumps({"text": "some words of a document " * 400}) + "\n"
    path = tmp_path / "big.jsonl"
    path.write_text(line * (6 * (8 << 20) // len(line)), encoding="utf-8")
    return path


def test_killed_packing_goes_on(tmp_path: Path) -> None:
    """After kill -9 the finished parts are kept, no worker lives on, and the bytes are equal."""
    source = _big_corpus(tmp_path)
    arguments = ["pack", "--source", str(source), "--sequence-length", "256", "--workers", "2"]
    command = [*COMMAND, *arguments, "--out", str(tmp_path / "killed")]
    child = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE)
    working = tmp_path / "killed" / ".256.packing"
    wait_until(lambda: any(working.glob("part-*.json")), "a finished part")
    child.send_signal(signal.SIGKILL)
    # The pipe ends when the last worker has let go of it.
    child.communicate(timeout=60)
    left = {file.name for file in working.glob("part-*.json")}
    assert not (tmp_path / "killed" / "256").exists()
    again = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert f"going on with {len(left)} parts" in again.stdout
    whole = pack.ensure_pack(Recipe(str(source), (256,)), tmp_path / "whole", quiet)
    assert files_of(whole.folder) == files_of(tmp_path / "killed" / "256")


def test_killed_worker_is_told(tmp_path: Path) -> None:
    """When the kernel kills a worker, the answer is one sentence, and finished parts are kept."""
    source = _big_corpus(tmp_path)
    arguments = ["pack", "--source", str(source), "--sequence-length", "256", "--workers", "2"]
    command = [*COMMAND, *arguments, "--out", str(tmp_path / "out")]
    child = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    working = tmp_path / "out" / ".256.packing"
    wait_until(lambda: any(working.glob("part-*.json")), "a finished part")
    children = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    workers = [
        pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(int(workers[0]), signal.SIGKILL)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "tpujob-data: a worker was killed" in said
    assert "Traceback" not in said
    assert any(working.glob("part-*.json"))


def test_full_disk_loses_no_part(tmp_path: Path) -> None:
    """A write that fails is told with the file, and packing goes on once there is room."""
    source = _big_corpus(tmp_path)
    arguments = ["pack", "--source", str(source), "--sequence-length", "256", "--workers", "1"]
    command = [*COMMAND, *arguments, "--out", str(tmp_path / "full")]
    # A limit on the size of a file, in KiB, fails like a full disk and needs none.
    limited = ["bash", "-c", 'ulimit -f 1000; exec "$@"', "bash", *command]
    failed = subprocess.run(limited, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "rows-000256-00000.array_record cannot be written" in failed.stderr
    assert "Traceback" not in failed.stderr
    subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=True)
    whole = pack.ensure_pack(Recipe(str(source), (256,)), tmp_path / "whole", quiet)
    assert files_of(whole.folder) == files_of(tmp_path / "full" / "256")


@pytest.mark.usefixtures("small_parts")
def test_changed_input_is_not_mixed_with_old_parts(tmp_path: Path) -> None:
    """A packing that broke off is begun anew when the input has changed since."""
    source = make_jsonl(tmp_path / "d.jsonl", [f"document {i} " * 20 for i in range(100)])
    with source.open("a") as file:
        file.write('{"wrong": 1}\n')
    with pytest.raises(DataError, match="no text in field 'text'"):
        pack.ensure_pack(Recipe(str(source), (64,)), tmp_path / "pack", quiet)
    assert list((tmp_path / ".pack.packing").glob("part-*.json"))
    make_jsonl(source, [f"different {i} " * 20 for i in range(100)])
    resumed = pack.ensure_pack(Recipe(str(source), (64,)), tmp_path / "pack", quiet)
    fresh = pack.ensure_pack(Recipe(str(source), (64,)), tmp_path / "fresh", quiet)
    assert files_of(resumed.folder) == files_of(fresh.folder)


def test_many_processes_pack_once(text: Path, tmp_path: Path) -> None:
    """Of several processes that need the same pack one makes it, and all use it."""
    command = [*COMMAND, "pack", "--source", str(text), "--sequence-length", "16"]
    children = [
        subprocess.Popen(
            [*command, "--out", str(tmp_path / "data")],
            stdout=subprocess.PIPE,
            env=ENVIRONMENT,
            text=True,
        )
        for _ in range(4)
    ]
    outputs = [child.communicate(timeout=120)[0] for child in children]
    assert [child.returncode for child in children] == [0] * 4
    assert len({output.splitlines()[-1] for output in outputs}) == 1
    assert sum("packed 1" in output for output in outputs) == 1


def test_max_bytes_cuts_the_text(text: Path, tmp_path: Path) -> None:
    """No more text than asked for is packed, besides the end of the document."""
    made = pack.ensure_pack(Recipe(str(text), (16,), max_bytes=100), tmp_path / "pack", quiet)
    assert made.tokens == 101


@pytest.mark.parametrize("content", [None, b"short"])
def test_missing_or_short_text_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    """No text, or less than one row, is said in words; no half pack stays behind."""
    source = tmp_path / "source"
    if content:
        source.mkdir()
        (source / "a.txt").write_bytes(content)
    with pytest.raises(DataError, match=r"neither stdlib nor a directory|less text than one row"):
        pack.ensure_pack(Recipe(str(source), (16,)), tmp_path / "data" / "16", quiet)
    assert [p.name for p in (tmp_path / "data").iterdir() if "packing" in p.name] == []


def test_unusable_directory_is_named(text: Path, tmp_path: Path) -> None:
    """A data directory that cannot be made is an error that names it and the user."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/data cannot be used by user id \d+"):
        pack.ensure_pack(Recipe(str(text), (16,)), tmp_path / "file" / "data" / "16", quiet)


def test_stdlib_is_real_text(tmp_path: Path) -> None:
    """The default source is this Python's own library, named after its version."""
    recipe = Recipe("stdlib", (64,), max_bytes=50_000)
    made = pack.ensure_pack(recipe, tmp_path / recipe.name, quiet)
    assert made.rows >= (50_000 - 1) // 64
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in recipe.name
    assert b"import" in b"".join(texts_of(all_rows(made)))


def test_flipped_bit_is_found(manifest: Manifest) -> None:
    """Checking finds one wrong bit anywhere in a file, and names the file."""
    verify(manifest)
    shard = manifest.shards[0]
    path = manifest.folder / shard.file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"is damaged(.|\n)*{shard.file} has another checksum"):
        verify(manifest)


def test_cut_or_missing_file_is_found_at_once(manifest: Manifest) -> None:
    """Every start sees that a file is too short or not there."""
    path = manifest.folder / manifest.shards[0].file
    size = path.stat().st_size
    os.truncate(path, size - 1)
    with pytest.raises(DataError, match=f"has {size - 1} bytes instead of {size}"):
        read_manifest(manifest.folder)
    path.unlink()
    with pytest.raises(DataError, match="No such file"):
        read_manifest(manifest.folder)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"format": 1}', '{"format": 2}'])
def test_bad_manifest_is_an_error(manifest: Manifest, content: str) -> None:
    """What is no manifest of this version is answered with what to do."""
    (manifest.folder / "pack.json").write_text(content)
    with pytest.raises(DataError, match="pack anew"):
        read_manifest(manifest.folder)


def _config(source: Path, tmp_path: Path, **changes: object) -> configs.TrainerConfig:
    raw = {
        "data": {"source": str(source), "directory": str(tmp_path / "data")},
        "checkpoint": {"directory": "unused"},
        "sequenceLength": 16,
    }
    return configs.load(raw | changes)


def test_trainer_takes_the_pack_of_its_length(manifest: Manifest, tmp_path: Path) -> None:
    """``data.source`` may be a directory of packs, or one pack."""
    for source in (manifest.folder.parent, manifest.folder):
        assert loader.prepare(_config(source, tmp_path), quiet) == manifest
    assert find_packs(manifest.folder.parent) == [manifest]


def test_trainer_refuses_another_length(manifest: Manifest, tmp_path: Path) -> None:
    """The answer names the packs that are there."""
    config = _config(manifest.folder.parent, tmp_path, sequenceLength=32)
    with pytest.raises(DataError, match=r"no pack of length 32; there are 16 \(16\)"):
        loader.prepare(config, quiet)
