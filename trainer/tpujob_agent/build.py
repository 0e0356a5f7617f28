"""``python -m tpujob_agent.build OUT``: make the reproducible zipapp of agent and client."""

from __future__ import annotations

import argparse
import io
import os
import zipfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("tpujob", "tpujob_agent")
#: The oldest time a zip file can hold; equal sources make equal files.
_EPOCH = (1980, 1, 1, 0, 0, 0)
#: Runs under any Python that an image may have, so that an old one gets a sentence.
_MAIN = """\
import sys

if sys.version_info < (3, 10):
    found = "%d.%d" % sys.version_info[:2]
    sys.stderr.write("tpujob-agent: needs Python 3.10 or newer as python3 in the image, "
                     "which has " + found + "\\n")
    sys.exit(64)
from tpujob_agent.__main__ import main

sys.exit(main())
"""
_SHEBANG = b"#!/usr/bin/env python3\n"


def archive() -> bytes:
    """The zipapp's bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundle:
        for path in sorted(p for name in _PACKAGES for p in (_ROOT / name).rglob("*.py")):
            _add(bundle, path.relative_to(_ROOT).as_posix(), path.read_bytes())
        _add(bundle, "__main__.py", _MAIN.encode())
    return _SHEBANG + buffer.getvalue()


def _add(bundle: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.external_attr = 0o644 << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    bundle.writestr(info, content)


def build(out: Path) -> None:
    """Write the zipapp, atomically."""
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    temporary.write_bytes(archive())
    temporary.chmod(0o755)
    temporary.replace(out)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    build(parser.parse_args().out)


if __name__ == "__main__":
    main()
