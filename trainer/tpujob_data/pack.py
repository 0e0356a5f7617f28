"""Makes packs: parts of the input in parallel, each kept once it is done, then one manifest.

The same input gives the same bytes, whatever the number of workers and however often the
packing was killed in between, so that every host may pack for itself.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python import array_record_module

from tpujob_data import DataError, sources, tokens
from tpujob_data.manifest import (
    FORMAT,
    MANIFEST_FILE,
    Manifest,
    Shard,
    file_sha256,
    read_manifest,
)
from tpujob_data.packing import Block, Splitter, make_packer
from tpujob_data.rows import Layout
from tpujob_data.sources import STDLIB, Corpus, Part

_SAY_PERIOD_S = 5.0
#: Documents given to the tokenizer at once.
_DOCUMENTS_AT_ONCE = 256
_RECIPE_FILE = "recipe.json"

Say = Callable[[str], None]
#: Told the bytes of input that are packed, and how many there are.
Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """What a pack is made of; equal recipes give equal packs on equal input."""

    source: str  # stdlib, a directory or a file
    lengths: tuple[int, ...]  # tokens a row; several: buckets
    kind: str = ""  # of the files; empty: by their names
    field: str = "text"
    tokenizer: str = tokens.BYTES
    end_token: str = ""
    max_bytes: int | None = None

    @property
    def name(self) -> str:
        """Folder of the pack where the trainer packs by itself."""
        if self.source == STDLIB:
            origin = f"stdlib{sys.version_info.major}.{sys.version_info.minor}"
        else:
            path = str(Path(self.source).resolve())
            origin = f"text-{hashlib.sha256(path.encode()).hexdigest()[:8]}"
        return f"{origin}-{self.max_bytes}-bytes-{folder_of(self.lengths)}.v{FORMAT}"


def folder_of(lengths: Sequence[int]) -> str:
    """Folder of a pack beside those of other lengths: ``2048`` or ``128,256,512``."""
    return ",".join(map(str, lengths))


def ensure_pack(
    recipe: Recipe, final: Path, say: Say, *, workers: int = 1, progress: Progress | None = None
) -> Manifest:
    """The pack of ``recipe`` in the folder ``final``: one process makes it, the others wait.

    Args:
        recipe: what to pack.
        final: appears only once the pack is complete.
        say: told what people should know.
        workers: processes that pack.
        progress: told how far it is.

    Raises:
        DataError: there is no text, or the directory cannot be used.
    """
    if (final / MANIFEST_FILE).exists():
        return read_manifest(final)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with (final.parent / f".{final.name}.lock").open("w") as lock:
            _acquire(lock.fileno(), final, say)
            # The kernel drops the lock with its holder, so a killed packer blocks nobody.
            if not (final / MANIFEST_FILE).exists():
                _pack_into(recipe, final, say, workers, progress)
    except OSError as error:
        raise DataError(
            f"data directory {final.parent} cannot be used by user id {os.geteuid()}: {error}"
        ) from error
    except BrokenProcessPool as error:
        raise DataError(
            "a worker was killed, perhaps for memory: the same command goes on with the parts "
            "that are missing, and --workers can be fewer"
        ) from error
    return read_manifest(final)


def _acquire(lock_fd: int, final: Path, say: Say) -> None:
    started = said = time.monotonic()
    while True:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() - said >= _SAY_PERIOD_S:
                said = time.monotonic()
                say(f"waiting for another process to pack {final} ({said - started:.0f} s)")
            time.sleep(0.05)
        else:
            return


def _pack_into(
    recipe: Recipe, final: Path, say: Say, workers: int, progress: Progress | None
) -> None:
    if final.exists():  # without a manifest: not ours, or half removed
        raise DataError(f"{final} exists but is no finished pack: remove it")
    tokenizer = tokens.load(recipe.tokenizer, recipe.end_token)
    corpus = sources.find(
        recipe.source, kind=recipe.kind, field=recipe.field, max_bytes=recipe.max_bytes
    )
    working = final.with_name(f".{final.name}.packing")
    _begin_or_resume(working, _identity(recipe, corpus, tokenizer), say)
    recipe = dataclasses.replace(recipe, kind=corpus.kind)
    for done in _pack_parts(working, recipe, corpus.parts, workers):
        if progress:
            progress(done, corpus.size)
    manifest = _manifest(working, recipe, corpus, tokenizer)
    if not manifest.shards:
        shutil.rmtree(working)
        raise DataError(
            f"{corpus.root} holds less text than one row of {min(recipe.lengths) + 1} tokens: "
            "give more text, or a shorter sequenceLength"
        )
    for leftover in [*working.glob("part-*"), *working.glob("rest-*")]:
        leftover.unlink()
    (working / _RECIPE_FILE).unlink()
    manifest.write()
    working.rename(final)
    say(f"packed {manifest.rows} rows of {folder_of(recipe.lengths)} tokens from {corpus.root}")


def _identity(recipe: Recipe, corpus: Corpus, tokenizer: tokens.Tokenizer) -> str:
    """Changes whenever parts that are done already would become different."""
    changed = [piece.path.stat().st_mtime_ns for part in corpus.parts for piece in part]
    values = [FORMAT, recipe.lengths, corpus.sha256, changed, tokenizer.sha256, tokenizer.end]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _begin_or_resume(working: Path, identity: str, say: Say) -> None:
    try:
        is_same = (working / _RECIPE_FILE).read_text(encoding="utf-8") == identity
    except OSError:
        is_same = False
    if is_same:
        say(f"going on with {len(list(working.glob('part-*.json')))} parts that are done already")
        return
    shutil.rmtree(working, ignore_errors=True)
    working.mkdir()
    (working / _RECIPE_FILE).write_text(identity, encoding="utf-8")


def _pack_parts(
    working: Path, recipe: Recipe, parts: Sequence[Part], workers: int
) -> Iterator[int]:
    """Pack the parts that are missing; yields the bytes of input that are done."""
    missing = [i for i in range(len(parts)) if not _part_file(working, i).exists()]
    done = sum(_size(part) for part in parts) - sum(_size(parts[i]) for i in missing)
    if workers == 1 or len(missing) <= 1:
        for index in missing:
            done += _size(_pack_part(working, recipe, index, parts[index]))
            yield done
        return
    # Spawned, because a fork would inherit the threads of whoever calls.
    with ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_begin_worker
    ) as pool:
        futures = [pool.submit(_pack_part, working, recipe, i, parts[i]) for i in missing]
        try:
            for future in as_completed(futures):
                done += _size(future.result())
                yield done
        finally:
            pool.shutdown(cancel_futures=True)


def _size(part: Part) -> int:
    return sum(piece.size for piece in part)


def _begin_worker() -> None:
    # The processes are the parallelism; threads of the tokenizer would only add to it.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    parent = multiprocessing.parent_process()
    assert parent is not None

    def leave_with_parent() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()


def _pack_part(working: Path, recipe: Recipe, index: int, part: Part) -> Part:
    """Pack one part and note what came of it; the note comes last, and whole."""
    tokenizer = tokens.load(recipe.tokenizer, recipe.end_token)
    packer = make_packer(recipe.lengths)
    shards = _Shards(working, index, tokenizer.vocab)
    documents = skipped = total = 0
    for texts in _batched(sources.documents(part, recipe.kind, recipe.field)):
        kept = [text for text in texts if text and b"\0" not in text]
        skipped += len(texts) - len(kept)
        documents += len(kept)
        for encoded in tokenizer.encode(kept):
            total += len(encoded)
            shards.write(packer.add(encoded))
    shards.write(packer.finish())
    noted: dict[str, Any] = {"documents": documents, "skipped": skipped, "tokens": total}
    noted["shards"] = [dataclasses.asdict(shard) for shard in shards.close()]
    if isinstance(packer, Splitter):
        np.save(_rest_file(working, index), np.stack([*packer.rest()]))
    path = _part_file(working, index)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(noted), encoding="utf-8")
    temporary.replace(path)
    return part


def _part_file(working: Path, index: int) -> Path:
    return working / f"part-{index:05}.json"


def _rest_file(working: Path, index: int) -> Path:
    return working / f"rest-{index:05}.npy"


def _batched(documents: Iterator[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    for document in documents:
        batch.append(document)
        if len(batch) == _DOCUMENTS_AT_ONCE:
            yield batch
            batch = []
    yield batch


class _Shards:
    """The files of one part: one for each length that occurs."""

    def __init__(self, working: Path, part: int, vocab: int) -> None:
        self._working, self._part, self._vocab = working, part, vocab
        self._writers: dict[int, Any] = {}
        self._rows: dict[int, int] = {}
        self._targets: dict[int, int] = {}

    def write(self, blocks: Iterator[Block]) -> None:
        """Append rows."""
        for block in blocks:
            length = block.length
            if length not in self._writers:
                # Uncompressed and one record a group: random access costs one read.
                self._writers[length] = array_record_module.ArrayRecordWriter(
                    str(self._path(length)), "group_size:1,uncompressed"
                )
                self._rows[length] = self._targets[length] = 0
            layout = Layout(length, self._vocab)
            for record in layout.encode(block.tokens_RxM, block.starts_RxM, block.used_R):
                self._writers[length].write(record.tobytes())
            self._rows[length] += len(block.used_R)
            self._targets[length] += int(block.used_R.sum()) - len(block.used_R)

    def _path(self, length: int) -> Path:
        return self._working / f"rows-{length:06}-{self._part:05}.array_record"

    def close(self) -> Iterator[Shard]:
        """Finish the files, and describe them."""
        for length in sorted(self._writers):
            path = self._path(length)
            try:
                self._writers[length].close()
            except RuntimeError as error:  # a write that failed is told only here
                raise DataError(f"{path} cannot be written: {error}") from error
            with path.open("rb") as file:
                os.fsync(file.fileno())
            yield Shard(
                file=path.name,
                length=length,
                rows=self._rows[length],
                targets=self._targets[length],
                size=path.stat().st_size,
                sha256=file_sha256(path),
            )


def _manifest(
    working: Path, recipe: Recipe, corpus: Corpus, tokenizer: tokens.Tokenizer
) -> Manifest:
    files = [_part_file(working, index) for index in range(len(corpus.parts))]
    parts = [json.loads(file.read_text("utf-8")) for file in files]
    shards = [Shard(**shard) for part in parts for shard in part["shards"]]
    joined, dropped = _join_rests(working, recipe, tokenizer.vocab, len(parts))
    ordered = sorted([*shards, *joined], key=lambda shard: shard.file)
    return Manifest(
        folder=working,
        lengths=recipe.lengths,
        tokenizer=tokenizer.name,
        tokenizer_sha256=tokenizer.sha256,
        vocab=tokenizer.vocab,
        end_token=tokenizer.end,
        input_sha256=corpus.sha256,
        documents=sum(part["documents"] for part in parts),
        skipped=sum(part["skipped"] for part in parts),
        tokens=sum(part["tokens"] for part in parts),
        dropped=dropped,
        shards=tuple(ordered),
    )


def _join_rests(working: Path, recipe: Recipe, vocab: int, parts: int) -> tuple[list[Shard], int]:
    """Rows of what each part had left over, and how many tokens are left over now."""
    if len(recipe.lengths) > 1:
        return [], 0
    splitter, shards = Splitter(recipe.lengths[0]), _Shards(working, parts, vocab)
    for index in range(parts):
        rest, starts = np.load(_rest_file(working, index))
        starts[:1] = 1  # what came before it is elsewhere
        splitter.extend(rest, starts.astype(np.bool_))
        shards.write(splitter.finish())
    return list(shards.close()), len(splitter.rest()[0])
