"""What a finished pack says about itself, and whether it can be used."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from tpujob_data import DataError
from tpujob_data.rows import Layout

FORMAT = 2
MANIFEST_FILE = "pack.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Shard:
    """One ArrayRecord file; all its rows have one length."""

    file: str
    length: int
    rows: int
    targets: int  # tokens that are predicted: one less than a row holds
    size: int
    sha256: str


@dataclasses.dataclass(frozen=True, slots=True)
class Bucket:
    """All rows of one length."""

    length: int
    shards: tuple[Shard, ...]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(shard.rows for shard in self.shards)

    @property
    def padding(self) -> float:
        """Share of the rows' positions that predict nothing."""
        return 1 - sum(shard.targets for shard in self.shards) / (self.rows * self.length)


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """The content of ``pack.json``."""

    folder: Path
    lengths: tuple[int, ...]
    tokenizer: str
    tokenizer_sha256: str
    vocab: int
    end_token: int
    input_sha256: str
    documents: int
    skipped: int  # empty ones and binary files
    tokens: int
    dropped: int  # tokens at the very end that fill no row
    shards: tuple[Shard, ...]

    @property
    def sha256(self) -> str:
        """Of all rows in order, by way of their files."""
        return hashlib.sha256("".join(s.sha256 for s in self.shards).encode()).hexdigest()

    @property
    def rows(self) -> int:
        """Number of rows of all lengths."""
        return sum(shard.rows for shard in self.shards)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Rows by length, shortest first; lengths without rows are left out."""
        lengths = sorted({shard.length for shard in self.shards})
        return tuple(
            Bucket(length, tuple(s for s in self.shards if s.length == length))
            for length in lengths
        )

    @property
    def padding(self) -> float:
        """Share of all rows' positions that predict nothing."""
        positions = sum(shard.rows * shard.length for shard in self.shards)
        return 1 - sum(shard.targets for shard in self.shards) / positions

    def layout(self, length: int) -> Layout:
        """How rows of a length are stored."""
        return Layout(length, self.vocab)

    def write(self) -> None:
        """Write ``pack.json``."""
        values = dataclasses.asdict(self) | {"format": FORMAT}
        del values["folder"]
        text = json.dumps(values, indent=1) + "\n"
        (self.folder / MANIFEST_FILE).write_text(text, encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a finished pack whose files are all there.

    Raises:
        DataError: it is missing, was written by another version, or a file has another size.
    """
    path = folder / MANIFEST_FILE
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw.pop("format") != FORMAT:
            raise DataError(f"{path} is of another version of this program: pack anew")
        shards = tuple(Shard(**shard) for shard in raw.pop("shards"))
        lengths = tuple(raw.pop("lengths"))
        manifest = Manifest(folder=folder, lengths=lengths, shards=shards, **raw)
    except (OSError, KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise DataError(
            f"{path} is no manifest of a pack ({error}): remove {folder} and pack anew"
        ) from error
    faults = [fault for shard in shards if (fault := _fault_of_size(folder, shard))]
    if faults:
        raise DataError(_damaged(folder, faults))
    return manifest


def _fault_of_size(folder: Path, shard: Shard) -> str:
    try:
        size = (folder / shard.file).stat().st_size
    except OSError as error:
        return f"{shard.file}: {error.strerror}"
    return "" if size == shard.size else f"{shard.file} has {size} bytes instead of {shard.size}"


def _damaged(folder: Path, faults: Sequence[str]) -> str:
    lines = "".join(f"\n  - {fault}" for fault in faults[:20])
    return f"{folder} is damaged: copy it again, or remove it and pack anew{lines}"


def verify(manifest: Manifest) -> None:
    """Compare every byte with the checksums of the manifest.

    Raises:
        DataError: names each file that differs.
    """
    faults = [
        f"{shard.file} has another checksum"
        for shard in manifest.shards
        if file_sha256(manifest.folder / shard.file) != shard.sha256
    ]
    if faults:
        raise DataError(_damaged(manifest.folder, faults))


def file_sha256(path: Path) -> str:
    """Checksum of a file, as ``sha256sum`` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_packs(directory: Path) -> list[Manifest]:
    """The packs in a directory, which may be one itself.

    Raises:
        DataError: one of them is unusable.
    """
    folders = [directory] if (directory / MANIFEST_FILE).exists() else sorted(directory.glob("*"))
    return [read_manifest(folder) for folder in folders if (folder / MANIFEST_FILE).is_file()]


def shown(manifest: Manifest) -> str:
    """Lines for people."""
    m = manifest
    lines = [
        f"{m.folder}: {m.rows} rows of {m.tokens} tokens ({m.dropped} left over)",
        f"  {m.documents} documents ({m.skipped} skipped), each ended by token {m.end_token}",
        f"  tokenizer {m.tokenizer} {m.tokenizer_sha256[:16]}, vocabulary {m.vocab}",
        *(f"  length {b.length}: {b.rows} rows, padding {b.padding:.1%}" for b in m.buckets),
        f"  padding {m.padding:.1%}, sha256 {m.sha256[:16]}",
    ]
    return "\n".join(lines)
