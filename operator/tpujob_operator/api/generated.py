"""Files that follow from a source in Python: written, or compared with what is there."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

#: Path below the repository's root, and content.
Outputs = Mapping[str, str]


def write(root: Path, outputs: Outputs) -> list[str]:
    """Write outputs below ``root``; returns the paths that have changed."""
    changed = drifted(root, outputs)
    for name in changed:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(outputs[name], encoding="utf-8")
    return changed


def drifted(root: Path, outputs: Outputs) -> list[str]:
    """Outputs whose files below ``root`` are missing or different."""
    return [name for name, content in outputs.items() if _read(root / name) != content]


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def main(
    outputs: Outputs, arguments: Sequence[str] | None, *, prog: str, description: str | None
) -> int:
    """A generator's command line; the exit code is 1 if ``--check`` finds drift."""
    parser = argparse.ArgumentParser(prog=f"python -m {prog}", description=description)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on drift")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="root of the repository")
    given = parser.parse_args(arguments)
    if given.check:
        stale = drifted(given.root, outputs)
        for name in stale:
            print(f"{name} is not what its source says: run `make gen`", file=sys.stderr)
        return 1 if stale else 0
    for name in write(given.root, outputs):
        print(f"wrote {name}")
    return 0
