"""Jobs in files, checked as the API server would check them and more strictly."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tpujob_operator.api.base import KIND
from tpujob_operator.api.models import InvalidJobError, TPUTrainingJob, parse_job


class FileError(Exception):
    """A file that holds no valid job; the message says what is wrong and where."""


def read_jobs(path: str, namespace: str | None = None) -> list[TPUTrainingJob]:
    """All jobs of a file, see ``read_objects``."""
    return [job for _, job in read_objects(path, namespace)]


def read_objects(
    path: str, namespace: str | None = None
) -> list[tuple[dict[str, Any], TPUTrainingJob]]:
    """All jobs of a file of YAML or JSON, as written and as understood.

    Other kinds are passed over; the file ``-`` is standard input.

    Args:
        path: the file.
        namespace: of jobs that name none.

    Raises:
        FileError: it cannot be read, holds no job, or one that is not valid.
    """
    found = [item for item in _documents(path) if _kind(item) == KIND]
    if not found:
        raise FileError(f"{path}: there is no {KIND} in it")
    return [_job(path, item, namespace) for item in found]


def _documents(path: str) -> list[Any]:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        return list(yaml.safe_load_all(text))
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: not YAML: {error}") from error


def _kind(item: Any) -> Any:
    return item.get("kind") if isinstance(item, Mapping) else None


def _job(
    path: str, raw: dict[str, Any], namespace: str | None
) -> tuple[dict[str, Any], TPUTrainingJob]:
    meta = raw.get("metadata")
    if isinstance(meta, Mapping) and namespace:
        raw = {**raw, "metadata": {"namespace": namespace, **meta}}
    try:
        return raw, parse_job(raw, strict=True)
    except InvalidJobError as error:
        lines = "\n".join(f"{path}: {line}" for line in str(error).splitlines())
        raise FileError(lines) from error
