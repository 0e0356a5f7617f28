"""Small corpora, and what a pack of them holds."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
from array_record.python import array_record_module

from tpujob_data.manifest import Manifest
from tpujob_data.rows import Rows


def quiet(_text: str) -> None:
    """Progress nobody reads."""


def make_text(root: Path) -> Path:
    """A directory with text, a binary file, and other people's packages."""
    (root / "deep").mkdir(parents=True)
    (root / "site-packages").mkdir()
    (root / "b.txt").write_bytes(b"second document " * 40)
    (root / "a.txt").write_bytes(b"first document " * 40)
    (root / "deep" / "c.txt").write_bytes(b"third document " * 40)
    (root / "binary").write_bytes(b"\x7fELF\0\0\0" * 100)
    (root / "site-packages" / "d.txt").write_bytes(b"not ours " * 100)
    return root


def make_jsonl(path: Path, texts: list[str]) -> Path:
    """One JSON line for each text."""
    lines = (json.dumps({"text": text, "id": at}) for at, text in enumerate(texts))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def all_rows(manifest: Manifest, length: int | None = None) -> Rows:
    """Every row of a length in the order of the files."""
    wanted = length or manifest.lengths[-1]
    records = itertools.chain.from_iterable(
        array_record_module.ArrayRecordReader(str(manifest.folder / shard.file)).read_all()
        for shard in manifest.shards
        if shard.length == wanted
    )
    return manifest.layout(wanted).decode(list(records))


def texts_of(rows: Rows) -> list[bytes]:
    """The tokens of each row as bytes, without padding."""
    pairs = zip(rows.tokens, rows.segments, strict=True)
    return [bytes(row[segment > 0].astype(np.uint8)) for row, segment in pairs]


def files_of(folder: Path) -> dict[str, bytes]:
    """Content of every file by name."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}
