"""Where checkpoints lie: directories, and buckets that look like directories."""

from __future__ import annotations

import os
import re
import secrets
from types import ModuleType

from etils import epath

#: Orbax's mark of a step in a bucket whose save came to its end.
COMMITTED = "commit_success.txt"
_BUCKET = re.compile(r"(gs|s3):/+")


def is_in_bucket(path: object) -> bool:
    """Whether a path lies in a bucket, where nothing can be renamed in one move."""
    return bool(_BUCKET.match(str(path)))


def buckets() -> ModuleType:
    """What reaches buckets, imported at the first call: a start on a disk does without."""
    from tpujob_checkpoint import buckets as found  # noqa: PLC0415

    return found


def orbax() -> ModuleType:
    """What reads and writes arrays, imported at the first call: not every start needs it."""
    from tpujob_checkpoint import orbax_files  # noqa: PLC0415

    return orbax_files


def path_of(directory: str) -> epath.Path:
    """A directory, wherever it lies."""
    if is_in_bucket(directory):
        buckets()
    return epath.Path(directory)


def write_whole(path: epath.Path, content: bytes) -> None:
    """Write a file that is there as a whole or not at all, as every object of a bucket is."""
    if is_in_bucket(path):
        path.write_bytes(content)
        return
    temporary = path.with_suffix(f".{secrets.token_hex(4)}.tmp")  # pods may have equal process ids
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def normalized(path: str) -> str:
    """A path without dots and needless slashes; a bucket's keeps the two behind its scheme."""
    return _BUCKET.sub(r"\1://", os.path.normpath(path))
