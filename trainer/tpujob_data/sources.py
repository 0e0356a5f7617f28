"""Where documents come from: text files, JSON lines or parquet, cut into parts of bounded size."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tpujob_data import DataError

STDLIB = "stdlib"
KINDS = ("text", "jsonl", "parquet")
_KIND_OF_SUFFIX = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
#: Other people's code and generated tables are no text worth learning.
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "lib-dynload"})
#: A part is the unit of work, and what a killed packer has to do again. Few enough for one folder.
_PART_BYTES, _MAX_PARTS = 8 << 20, 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a file: bytes of text, bytes in which lines begin, or row groups."""

    path: Path
    start: int
    stop: int
    size: int  # bytes of input


Part = tuple[Piece, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Corpus:
    """All input of a pack, in an order that depends on relative paths alone."""

    kind: str
    field: str  # of a JSON line, or the column of a parquet file
    parts: tuple[Part, ...]
    root: str  # for messages
    files: int
    sha256: str  # of names and sizes: content is read only once

    @property
    def size(self) -> int:
        """Bytes of input."""
        return sum(piece.size for part in self.parts for piece in part)


def find(
    source: str, *, kind: str = "", field: str = "text", max_bytes: int | None = None
) -> Corpus:
    """The documents below a directory, in a file, or of this Python's own library.

    Args:
        source: ``stdlib``, a directory or a file.
        kind: one of ``KINDS``; empty: by the names of the files.
        field: where the text is in a JSON line or a parquet row.
        max_bytes: take about so much input.

    Raises:
        DataError: there is nothing, or it is unclear what to read.
    """
    root = Path(sysconfig.get_path("stdlib") if source == STDLIB else source)
    if not root.exists():
        raise DataError(f"data.source {source!r} is neither stdlib nor a directory, file or pack")
    names = _names(root, "*.py" if source == STDLIB else "*")
    kind = kind or _only_kind(names, root)
    if kind != "text":
        names = [n for n in names if _KIND_OF_SUFFIX.get((root / n).suffix.lower()) == kind]
    paths = [root / name for name in names]
    pieces = _up_to(_pieces(paths, kind), max_bytes)
    total = sum(piece.size for piece in pieces)
    listing = [[name.as_posix(), (root / name).stat().st_size] for name in names]
    identity = json.dumps([kind, field if kind != "text" else "", max_bytes, listing])
    return Corpus(
        kind=kind,
        field=field,
        parts=tuple(_parts(pieces, max(_PART_BYTES, -(-total // _MAX_PARTS)))),
        root=str(root),
        files=len(names),
        sha256=hashlib.sha256(identity.encode()).hexdigest(),
    )


def _names(root: Path, pattern: str) -> list[Path]:
    if root.is_file():
        return [Path()]
    found = (path.relative_to(root) for path in root.rglob(pattern) if path.is_file())
    return sorted((n for n in found if _SKIPPED_FOLDERS.isdisjoint(n.parts)), key=lambda n: n.parts)


def _only_kind(names: Sequence[Path], root: Path) -> str:
    kinds = Counter(_KIND_OF_SUFFIX.get((root / name).suffix.lower(), "text") for name in names)
    if len(kinds) > 1:
        held = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        raise DataError(f"{root} holds files of several kinds ({held}): choose one with --format")
    return next(iter(kinds), "text")


def _pieces(paths: Sequence[Path], kind: str) -> Iterator[Piece]:
    for path in paths:
        if kind == "parquet":
            metadata = _parquet(path).metadata
            for group in range(metadata.num_row_groups):
                yield Piece(path, group, group + 1, metadata.row_group(group).total_byte_size)
            continue
        size = path.stat().st_size
        step = _PART_BYTES if kind == "jsonl" else max(size, 1)
        for start in range(0, size, step):
            stop = min(start + step, size)
            yield Piece(path, start, stop, stop - start)


def _up_to(pieces: Iterator[Piece], max_bytes: int | None) -> list[Piece]:
    taken: list[Piece] = []
    left = max_bytes
    for piece in pieces:
        if left is not None and piece.size >= left:
            is_bytes = piece.stop - piece.start == piece.size
            stop = piece.start + left if is_bytes else piece.stop
            return [*taken, dataclasses.replace(piece, stop=stop, size=min(left, piece.size))]
        taken.append(piece)
        left = None if left is None else left - piece.size
    return taken


def _parts(pieces: Sequence[Piece], limit: int) -> Iterator[Part]:
    part: list[Piece] = []
    held = 0
    for piece in pieces:
        part.append(piece)
        held += piece.size
        if held >= limit:
            yield tuple(part)
            part, held = [], 0
    if part:
        yield tuple(part)


def documents(part: Part, kind: str, field: str) -> Iterator[bytes]:
    """The texts of a part as UTF-8, also those that are empty.

    Raises:
        DataError: a line or a row cannot be read; says which.
    """
    for piece in part:
        if kind == "text":
            with piece.path.open("rb") as file:
                yield file.read(piece.stop)
        elif kind == "jsonl":
            yield from _json_lines(piece, field)
        else:
            yield from _parquet_rows(piece, field)


def _json_lines(piece: Piece, field: str) -> Iterator[bytes]:
    with piece.path.open("rb") as file:
        if piece.start:
            file.seek(piece.start - 1)
            file.readline()  # a line belongs to the piece in which it begins
        while (at := file.tell()) < piece.stop and (line := file.readline()):
            if line.strip():
                yield _text_of_line(line, field, f"{piece.path}, line at byte {at}")


def _text_of_line(line: bytes, field: str, where: str) -> bytes:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: no JSON ({error}): mend or remove the line") from error
    text = value.get(field) if isinstance(value, dict) else None
    if not isinstance(text, str):
        held = ", ".join(value) if isinstance(value, dict) else type(value).__name__
        raise DataError(f"{where}: no text in field {field!r} (holds {held}): give --field NAME")
    return text.encode("utf-8", errors="replace")  # JSON can escape half a surrogate pair


def _parquet(path: Path) -> Any:
    try:
        from pyarrow import parquet  # noqa: PLC0415 - an extra that only parquet needs
    except ImportError as error:
        raise DataError("parquet needs pyarrow: pip install 'tpujob[data]'") from error
    try:
        return parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as parquet: {error}") from error


def _parquet_rows(piece: Piece, column: str) -> Iterator[bytes]:
    with _parquet(piece.path) as file:
        if column not in file.schema_arrow.names:
            held = ", ".join(file.schema_arrow.names)
            raise DataError(f"{piece.path} has no column {column!r}: give --field, one of {held}")
        for group in range(piece.start, piece.stop):
            for text in file.read_row_group(group, columns=[column]).column(0).to_pylist():
                if not isinstance(text, str | None):
                    kind = type(text).__name__
                    raise DataError(f"{piece.path}: column {column!r} holds {kind}, not text")
                yield (text or "").encode()
