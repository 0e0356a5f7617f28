"""What lies beside the arrays of a step: of what they are, and which files there have to be.

The file is written last, by one process, before the step is committed. It proves damage without
Orbax: a file that it lists and that is missing, short or changed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from etils import epath

from tpujob_checkpoint import storage

FILE = "step.json"
#: Files whose bytes have a checksum of their own (TensorStore's), or are too large to read again.
_DATA = "d"
_LARGEST_CHECKED = 1 << 20
_THREADS = 8

#: Length and CRC-32 of a file; None where one is not known, as of all objects in buckets.
Mark = list[int | None]


class ContentsDamagedError(RuntimeError):
    """The file is missing, or is not what was written."""


@dataclasses.dataclass(frozen=True, slots=True)
class Contents:
    """What is known of a step without reading its arrays.

    Attributes:
        tree: fingerprint of the state: names, shapes and types.
        rows: devices that the digests are of.
        origin: what the state was trained with, as the program tells it.
        files: marks by path within the step.
    """

    tree: str
    rows: int
    origin: dict[str, Any] = dataclasses.field(default_factory=dict)
    files: dict[str, Mark] = dataclasses.field(default_factory=dict)


def write(path: epath.Path, contents: Contents) -> None:
    """Write down what lies in a step that is complete but for this file."""
    body = json.dumps(dataclasses.asdict(contents) | {"files": _files(path)}, sort_keys=True)
    (path / FILE).write_text(json.dumps({"contents": body, "check": _check(body)}))


def read(path: epath.Path) -> Contents:
    """What lies in a step.

    Raises:
        ContentsDamagedError: says what is wrong with the file.
        OSError, ValueError: it cannot be read now; a bucket's errors are ValueErrors.
    """
    try:
        raw = (path / FILE).read_bytes()
    except FileNotFoundError:
        _require_there(path)
        raise ContentsDamagedError(f"{FILE} is missing") from None
    try:
        found = json.loads(raw)
        if found["check"] != _check(found["contents"]):
            raise ContentsDamagedError(f"{FILE} is damaged")
        return Contents(**json.loads(found["contents"]))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ContentsDamagedError(f"{FILE} is damaged") from error


def _require_there(path: epath.Path) -> None:
    """Raise unless the step itself is there, with files in it.

    A directory that nobody can see, or a bucket whose listing is refused, proves nothing. A
    directory on a disk that is there and empty has lost its files.
    """
    if any(path.iterdir()):
        return
    if storage.is_in_bucket(path):
        raise FileNotFoundError(2, "no file of the step is to be seen", str(path))
    raise ContentsDamagedError("the step has no files")


def damage(path: epath.Path, contents: Contents) -> list[str]:
    """Files that are not as they were written: what is wrong with each.

    Raises:
        OSError, ValueError: it cannot be found out now.
    """
    _require_there(path)
    found = _files(path)
    wrong = []
    for name, (length, checksum) in sorted(contents.files.items()):
        if name not in found:
            wrong.append(f"{name} is missing")
            continue
        length_found, checksum_found = found[name]
        if length_found != length:
            wrong.append(f"{name} has {length_found} bytes instead of {length}")
        elif checksum_found != checksum:
            wrong.append(f"{name} is changed")
    return wrong


def _files(path: epath.Path) -> dict[str, Mark]:
    if storage.is_in_bucket(path):
        # Objects are whole or not there, and the service has checksums of its own.
        return {name: [None, None] for name in storage.buckets().names(str(path)) if _counts(name)}
    folder = Path(path)
    names = [str(p.relative_to(folder)) for p in _walk(folder)]
    names = [name for name in names if _counts(name)]
    with ThreadPoolExecutor(_THREADS) as pool:
        marks = pool.map(lambda name: _mark(folder / name), names)
    return dict(zip(names, marks, strict=True))


def _walk(folder: Path) -> list[Path]:
    """All files below a folder. ``Path.rglob`` passes over what it may not read; this raises."""
    found = []
    for path in folder.iterdir():
        found += _walk(path) if path.is_dir() else [path]
    return found


def _counts(name: str) -> bool:
    """Whether a file belongs to what was saved: not this one, and not the mark of a commit."""
    return name not in {FILE, storage.COMMITTED}


def _mark(path: Path) -> Mark:
    length = path.stat().st_size
    if path.parent.name == _DATA or length > _LARGEST_CHECKED:
        return [length, None]
    return [length, zlib.crc32(path.read_bytes())]


def _check(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]
