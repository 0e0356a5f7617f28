"""Documents come alike from text, JSON lines and parquet, by bytes or by a tokenizer file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.trainer.corpus import all_rows, make_jsonl, make_text, quiet, texts_of
from tpujob_data import DataError, cli, pack, sources, tokens
from tpujob_data.manifest import Manifest
from tpujob_data.pack import Recipe
from tpujob_trainer import config as configs
from tpujob_trainer import loader

TEXTS = [f"document number {i}, with words é" * (i % 7) for i in range(60)]


def _make_parquet(path: Path, texts: list[str | None]) -> Path:
    parquet.write_table(pa.table({"text": texts, "id": range(len(texts))}), path, row_group_size=7)
    return path


def _make_tokenizer(path: Path, *, special: tuple[str, ...] = ("<|endoftext|>",)) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.save(str(path))
    return path


def _pack(source: Path, out: Path, **options: object) -> Manifest:
    return pack.ensure_pack(Recipe(str(source), (32,), **options), out, quiet)  # type: ignore[arg-type] # the options of Recipe


def test_kinds_of_files_hold_the_same_documents(tmp_path: Path) -> None:
    """A corpus as JSON lines and as parquet makes equal rows; empty and null are skipped."""
    lines = _pack(make_jsonl(tmp_path / "d.jsonl", TEXTS), tmp_path / "one")
    nulls = [text or None for text in TEXTS]
    table = _pack(_make_parquet(tmp_path / "d.parquet", nulls), tmp_path / "two")
    assert texts_of(all_rows(lines)) == texts_of(all_rows(table))
    assert (lines.documents, lines.skipped) == (table.documents, table.skipped) == (51, 9)


@given(st.lists(st.text(max_size=30), min_size=1, max_size=20), st.integers(1, 60))
def test_lines_are_read_once_wherever_a_file_is_cut(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], part_bytes: int
) -> None:
    """Pieces of any size hold every line of the file exactly once, in order."""
    path = make_jsonl(tmp_path_factory.mktemp("lines") / "d.jsonl", texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_PART_BYTES", part_bytes)
        corpus = sources.find(str(path))
        read = [t for part in corpus.parts for t in sources.documents(part, "jsonl", "text")]
    assert read == [text.encode() for text in texts]


def test_tokenizer_file_makes_its_tokens(tmp_path: Path) -> None:
    """Rows hold the library's own tokens, and the end token after each document."""
    file = _make_tokenizer(tmp_path / "tokenizer.json")
    source = make_jsonl(tmp_path / "d.jsonl", TEXTS)
    made = _pack(source, tmp_path / "pack", tokenizer=str(file))
    library = Tokenizer.from_file(str(file))
    end = library.token_to_id("<|endoftext|>")
    expected = [i for text in TEXTS if text for i in [*library.encode(text).ids, end]]
    rows = all_rows(made)
    stream = [int(rows.tokens[0, 0]), *rows.tokens[:, 1:].ravel().tolist()]
    assert stream == expected[: len(stream)]
    assert made.tokens == len(expected)
    assert (made.vocab, made.end_token) == (library.get_vocab_size(), end)
    assert made.tokenizer_sha256 == tokens.load(str(file)).sha256 != ""
    assert np.max(rows.tokens) < made.vocab


def test_end_token_has_to_be_known(tmp_path: Path) -> None:
    """Without a well-known end of documents, the special tokens there are get named."""
    file = _make_tokenizer(tmp_path / "t.json", special=("<fin>", "<pad>"))
    with pytest.raises(DataError, match=r"give --end-token, one of its special .*\(<fin>, <pad>"):
        tokens.load(str(file))
    with pytest.raises(DataError, match="has no token '<end>'"):
        tokens.load(str(file), "<end>")
    assert tokens.load(str(file), "<fin>").end == 0


def test_model_must_know_all_tokens(tmp_path: Path) -> None:
    """A pack of a larger vocabulary than the model's is refused with the size to set."""
    file = _make_tokenizer(tmp_path / "tokenizer.json")
    source = make_jsonl(tmp_path / "d.jsonl", TEXTS)
    made = _pack(source, tmp_path / "packs" / "32", tokenizer=str(file))
    raw = {
        "data": {"source": str(tmp_path / "packs")},
        "checkpoint": {"directory": "unused"},
        "sequenceLength": 32,
    }
    with pytest.raises(DataError, match=rf"set model.vocab to at least {made.vocab}"):
        loader.prepare(configs.load(raw), quiet)
    fitting = configs.load(raw | {"model": {"vocab": 512}})
    assert loader.prepare(fitting, quiet) == made


@pytest.mark.parametrize("name", ["nothing.json", "broken.json"])
def test_unusable_tokenizer_is_named(tmp_path: Path, name: str) -> None:
    """A tokenizer file that is missing or is none is said to be so."""
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(DataError, match=name):
        tokens.load(str(tmp_path / name))


@pytest.mark.parametrize(
    ("module", "tokenizer", "install"),
    [("pyarrow", "bytes", r"tpujob\[data\]"), ("tokenizers", "t.json", r"tpujob\[trainer\]")],
)
def test_missing_library_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, tokenizer: str, install: str
) -> None:
    """Without an optional library the answer is the command that brings it."""
    monkeypatch.setitem(sys.modules, module, None)
    table = _make_parquet(tmp_path / "d.parquet", ["text"])
    with pytest.raises(DataError, match=install):
        _pack(table, tmp_path / "pack", tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("line", "expected"),
    [('{"text": "a', "no JSON"), ('{"body": "a"}', "holds body.*--field"), ("[1]", "holds list"),
     ('{"text": 1}', "no text in field 'text'")],
)  # fmt: skip
def test_bad_line_is_named(tmp_path: Path, line: str, expected: str) -> None:
    """The answer tells the file, the place of the line and what is wrong."""
    path = tmp_path / "d.jsonl"
    path.write_text(f'{{"text": "fine"}}\n{line}\n')
    with pytest.raises(DataError, match=rf"d.jsonl, line at byte 17.*{expected}"):
        _pack(path, tmp_path / "pack")


def test_bad_parquet_is_named(tmp_path: Path) -> None:
    """A missing column, a column of numbers and a file of something else are told apart."""
    table = _make_parquet(tmp_path / "d.parquet", ["text"])
    with pytest.raises(DataError, match="no column 'body': give --field, one of text, id"):
        _pack(table, tmp_path / "pack", field="body")
    with pytest.raises(DataError, match="column 'id' holds int, not text"):
        _pack(table, tmp_path / "pack", field="id")
    (tmp_path / "none.parquet").write_text("something else entirely")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        _pack(tmp_path / "none.parquet", tmp_path / "pack")


def test_mixed_directory_needs_a_choice(tmp_path: Path) -> None:
    """Files of several kinds are counted, and one kind can be chosen."""
    make_jsonl(tmp_path / "d.jsonl", TEXTS)
    (tmp_path / "README.txt").write_text("about the data")
    with pytest.raises(DataError, match=r"several kinds \(1 jsonl, 1 text\).*--format"):
        sources.find(str(tmp_path))
    assert sources.find(str(tmp_path), kind="jsonl").files == 1


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pack, info and verify agree on what is there; faults end with 1 and one sentence."""
    text = make_text(tmp_path / "text")
    pack_it = ["pack", "--source", str(text), "--out", str(tmp_path / "c"), "--workers", "1"]
    assert cli.main([*pack_it, "--sequence-length", "16"]) == 0
    assert cli.main([*pack_it, "--buckets", "64,32"]) == 0
    assert "length 64" in capsys.readouterr().out
    assert cli.main(["info", str(tmp_path / "c")]) == 0
    assert capsys.readouterr().out.count("padding") == 5  # each pack, and each of its lengths
    assert cli.main(["verify", str(tmp_path / "c")]) == 0
    assert capsys.readouterr().out.count("agree with their checksums") == 2
    (tmp_path / "text" / "new.txt").write_text("more")
    assert cli.main([*pack_it, "--sequence-length", "16"]) == 1
    assert "is a pack of other input" in capsys.readouterr().err
    assert cli.main(["info", str(text)]) == 1
    assert "holds no pack" in capsys.readouterr().err
    manifest = json.loads((tmp_path / "c" / "16" / "pack.json").read_text())
    assert manifest["tokenizer"] == "bytes"


def test_progress_fits_where_it_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A terminal gets one line that is drawn anew, a log gets lines."""
    for done in (5_000_000, 10_000_000):
        cli._Bar()(done, 10_000_000)
    shown = capsys.readouterr().out
    assert shown.count("\r") == 2
    assert shown.endswith("100% of 10.0 MB\n")
    cli._Lines()(10_000_000, 10_000_000)
    assert capsys.readouterr().out.startswith("packed 10.0 of 10.0 MB")
