"""``tpujob-data pack``: text files to fixed-length rows of tokens in one ArrayRecord.

The same input gives the same bytes, so that every host may pack for itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from array_record.python import array_record_module

FORMAT = 1
ROWS_FILE = "rows.array_record"
MANIFEST_FILE = "pack.json"
#: Ends a document. Text holds no NUL, and a file that does is skipped as binary.
END_OF_TEXT = b"\0"
#: Other people's code and generated tables are no text worth learning.
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "lib-dynload"})
_PROGRESS_PERIOD_S = 1.0

Say = Callable[[str], None]


class DataError(ValueError):
    """Text or packed data that cannot be used; the message says what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """What a pack is made of; equal recipes give equal packs on equal files."""

    source: str  # "stdlib" or a directory
    sequence_length: int
    max_bytes: int

    @property
    def name(self) -> str:
        """Folder of the pack inside the data directory."""
        if self.source == "stdlib":
            origin = f"stdlib{sys.version_info.major}.{sys.version_info.minor}"
        else:
            path = str(Path(self.source).resolve())
            origin = f"text-{hashlib.sha256(path.encode()).hexdigest()[:8]}"
        return f"{origin}-{self.max_bytes}-bytes-{self.sequence_length}"


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """What a finished pack says about itself."""

    rows: int
    sequence_length: int
    sha256: str  # of the rows' tokens, in order
    path: Path


def ensure_pack(recipe: Recipe, directory: Path, say: Say) -> Manifest:
    """The pack of ``recipe`` below ``directory``: one process makes it, the others wait.

    Raises:
        DataError: there is no text, or the directory cannot be used.
    """
    final = directory / recipe.name
    if (final / MANIFEST_FILE).exists():
        return read_manifest(final)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / f".{recipe.name}.lock").open("w") as lock:
            _acquire(lock.fileno(), final, say)
            # The kernel drops the lock with its holder, so a killed packer blocks nobody.
            if not (final / MANIFEST_FILE).exists():
                _pack_into(recipe, directory, final, say)
    except OSError as error:
        raise DataError(
            f"data directory {directory} cannot be used by user id {os.geteuid()}: {error}"
        ) from error
    return read_manifest(final)


def _acquire(lock_fd: int, final: Path, say: Say) -> None:
    started = said = time.monotonic()
    while True:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() - said >= 5 * _PROGRESS_PERIOD_S:
                said = time.monotonic()
                say(f"waiting for another process to pack {final} ({said - started:.0f} s)")
            time.sleep(0.05)
        else:
            return


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a finished pack.

    Raises:
        DataError: it is missing or was written by another version.
    """
    path = folder / MANIFEST_FILE
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["format"] != FORMAT:
            raise DataError(f"{path} has format {raw['format']}, expected {FORMAT}: pack anew")
        rows = folder / ROWS_FILE
        return Manifest(raw["rows"], raw["sequenceLength"], raw["sha256"], rows)
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise DataError(
            f"{path} is no manifest of a pack ({error}): remove {folder} and pack anew"
        ) from error


def _pack_into(recipe: Recipe, directory: Path, final: Path, say: Say) -> None:
    for leftover in directory.glob(f".{recipe.name}.packing-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    working = directory / f".{recipe.name}.packing-{os.getpid()}"
    working.mkdir()
    try:
        _write(recipe, working, say)
        if final.exists():  # without a manifest: not ours, or half removed
            raise DataError(f"{final} exists but is no finished pack: remove it")
        working.rename(final)
    finally:
        shutil.rmtree(working, ignore_errors=True)


def _write(recipe: Recipe, working: Path, say: Say) -> None:
    files, root = text_files(recipe.source)
    # Uncompressed and one record a group: random access costs one read.
    writer = array_record_module.ArrayRecordWriter(
        str(working / ROWS_FILE), "group_size:1,uncompressed"
    )
    checksum, rows = hashlib.sha256(), 0
    for row in _rows(_progressing(_documents(files), recipe, say), recipe):
        writer.write(row)
        checksum.update(row)
        rows += 1
    writer.close()
    if rows == 0:
        raise DataError(
            f"{root} holds less text than one row of {recipe.sequence_length + 1} bytes: "
            "give a directory with more text, or a shorter sequenceLength"
        )
    manifest = {
        "format": FORMAT,
        "source": recipe.source,
        "sequenceLength": recipe.sequence_length,
        "maxBytes": recipe.max_bytes,
        "rows": rows,
        "tokenizer": "bytes",
        "sha256": checksum.hexdigest(),
    }
    (working / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    say(f"packed {rows} rows of {recipe.sequence_length} tokens from {root}")


def text_files(source: str) -> tuple[list[Path], Path]:
    """All files of a source in an order that depends on their relative paths alone.

    Raises:
        DataError: the source is no directory.
    """
    root = Path(sysconfig.get_path("stdlib") if source == "stdlib" else source)
    if not root.is_dir():
        raise DataError(f"data.source {source!r} is neither stdlib nor a directory")
    pattern = "*.py" if source == "stdlib" else "*"
    found = (
        path.relative_to(root)
        for path in root.rglob(pattern)
        if path.is_file() and _SKIPPED_FOLDERS.isdisjoint(path.relative_to(root).parts)
    )
    return [root / path for path in sorted(found, key=lambda p: p.parts)], root


def _documents(files: Sequence[Path]) -> Iterator[bytes]:
    for file in files:
        text = file.read_bytes()
        if text and END_OF_TEXT not in text:
            yield text + END_OF_TEXT


def _progressing(documents: Iterator[bytes], recipe: Recipe, say: Say) -> Iterator[bytes]:
    """Cut the stream at ``max_bytes`` and say once a second how far it is."""
    taken, said = 0, time.monotonic()
    for document in documents:
        piece = document[: recipe.max_bytes - taken]
        taken += len(piece)
        yield piece
        if taken >= recipe.max_bytes:
            return
        if time.monotonic() - said >= _PROGRESS_PERIOD_S:
            said = time.monotonic()
            whole = recipe.max_bytes / 1e6
            say(f"packing {recipe.source}: {taken / 1e6:.1f} of at most {whole:.1f} MB")


def _rows(documents: Iterator[bytes], recipe: Recipe) -> Iterator[bytes]:
    """Rows of L + 1 tokens that overlap by one, so that every token is a target once."""
    length = recipe.sequence_length
    pending = b""
    for document in documents:
        pending += document
        start = 0
        while len(pending) - start > length:
            yield pending[start : start + length + 1]
            start += length
        pending = pending[start:]


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of ``tpujob-data``; returns the exit code."""
    parser = argparse.ArgumentParser("tpujob-data", description="Prepare text for training.")
    commands = parser.add_subparsers(dest="command", required=True)
    pack = commands.add_parser("pack", help="pack text into rows of tokens (ArrayRecord)")
    pack.add_argument("--source", default="stdlib", help="stdlib, or a directory of text files")
    pack.add_argument("--out", required=True, type=Path, help="data directory of the trainer")
    pack.add_argument("--sequence-length", required=True, type=int, help="tokens a row")
    pack.add_argument("--max-bytes", type=int, default=4_000_000, help="stop after so much text")
    options = parser.parse_args(argv)
    if options.sequence_length < 2 or options.max_bytes < 1:
        parser.error("--sequence-length must be at least 2 and --max-bytes at least 1")
    recipe = Recipe(options.source, options.sequence_length, options.max_bytes)
    try:
        manifest = ensure_pack(recipe, options.out, print)
    except DataError as error:
        print(f"tpujob-data: {error}", file=sys.stderr)
        return 1
    print(f"{manifest.path}: {manifest.rows} rows, sha256 {manifest.sha256[:16]}")
    return 0
