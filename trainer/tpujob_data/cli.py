"""``tpujob-data``: make, describe and check packs."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tpujob_data import DataError, sources, tokens
from tpujob_data.manifest import Manifest, find_packs, shown, verify
from tpujob_data.pack import Recipe, ensure_pack, folder_of

_BAR_WIDTH = 40


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of ``tpujob-data``; returns the exit code."""
    parser = argparse.ArgumentParser("tpujob-data", description="Prepare text for training.")
    commands = parser.add_subparsers(dest="command", required=True)
    _add_pack(commands.add_parser("pack", help="pack documents into rows of tokens"))
    for name, text in (("info", "describe packs"), ("verify", "compare packs with checksums")):
        command = commands.add_parser(name, help=text)
        command.add_argument("directory", type=Path, help="a pack, or a directory of packs")
    options = parser.parse_args(argv)
    try:
        if options.command == "pack":
            print(shown(_pack(options)))
        else:
            _inspect(options.directory, is_verifying=options.command == "verify")
    except DataError as error:
        print(f"tpujob-data: {error}", file=sys.stderr)
        return 1
    return 0


def _add_pack(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--source", default=sources.STDLIB, help="stdlib, a directory or a file")
    add("--out", required=True, type=Path, help="directory of packs, one folder for each length")
    lengths = parser.add_mutually_exclusive_group(required=True)
    lengths.add_argument("--sequence-length", type=_lengths, help="tokens a row")
    lengths.add_argument("--buckets", type=_lengths, help="several lengths, such as 128,256,512")
    add("--format", choices=sources.KINDS, default="", help="default: by the names of the files")
    add("--field", default="text", help="field of a JSON line, or column of parquet")
    add("--tokenizer", default=tokens.BYTES, help="bytes (default) or a tokenizer.json")
    add("--end-token", default="", help="token that ends a document (default: a well-known one)")
    add("--max-bytes", type=int, default=None, help="take about so much input (default: all)")
    add("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")


def _lengths(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) >= 2 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: lengths are numbers from 2 on")
    return tuple(sorted({int(part) for part in parts}))


def _pack(options: argparse.Namespace) -> Manifest:
    lengths = options.sequence_length or options.buckets
    if options.sequence_length and len(lengths) > 1:
        raise DataError(f"--sequence-length takes one length: use --buckets {folder_of(lengths)}")
    if options.workers < 1 or (options.max_bytes is not None and options.max_bytes < 1):
        raise DataError("--workers and --max-bytes must be at least 1")
    recipe = Recipe(
        source=options.source,
        lengths=lengths,
        kind=options.format,
        field=options.field,
        tokenizer=options.tokenizer,
        end_token=options.end_token,
        max_bytes=options.max_bytes,
    )
    final = options.out / folder_of(lengths)
    progress = _Bar() if sys.stdout.isatty() else _Lines()
    existing = final.exists()
    manifest = ensure_pack(recipe, final, print, workers=options.workers, progress=progress)
    if existing:
        _check_is_same(manifest, recipe)
    return manifest


def _check_is_same(pack: Manifest, recipe: Recipe) -> None:
    tokenizer = tokens.load(recipe.tokenizer, recipe.end_token)
    corpus = sources.find(
        recipe.source, kind=recipe.kind, field=recipe.field, max_bytes=recipe.max_bytes
    )
    wanted = (corpus.sha256, tokenizer.sha256, tokenizer.end)
    if wanted != (pack.input_sha256, pack.tokenizer_sha256, pack.end_token):
        raise DataError(
            f"{pack.folder} is a pack of other input or of another tokenizer: remove it, or give "
            "another --out"
        )


class _Lines:
    """Progress where nobody watches: a line a second at most."""

    def __init__(self) -> None:
        self._started = self._said = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._said >= 1.0 or done == total:
            self._said = now
            rate = done / 1e6 / max(now - self._started, 1e-9)
            print(f"packed {done / 1e6:.1f} of {total / 1e6:.1f} MB, {rate:.1f} MB/s", flush=True)


class _Bar:
    """Progress on a terminal."""

    def __call__(self, done: int, total: int) -> None:
        share = done / max(total, 1)
        filled = round(share * _BAR_WIDTH)
        end = "\n" if done == total else ""
        bar = "#" * filled + "-" * (_BAR_WIDTH - filled)
        print(f"\r[{bar}] {share:4.0%} of {total / 1e6:.1f} MB", end=end, flush=True)


def _inspect(directory: Path, *, is_verifying: bool) -> None:
    packs = find_packs(directory)
    if not packs:
        raise DataError(f"{directory} holds no pack: make one with tpujob-data pack")
    for pack in packs:
        print(shown(pack))
        if is_verifying:
            verify(pack)
            print(f"  all {len(pack.shards)} files agree with their checksums")


if __name__ == "__main__":
    sys.exit(main())
