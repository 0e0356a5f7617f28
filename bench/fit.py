"""``python -m bench.fit``: the table of presets and topologies in ``docs/tpu-fit.md``.

Each row is one real compilation, in a process of its own, one after the other: minutes on
two cores. Rows are kept in ``docs/tpu-fit.jsonl``, so that a run can make only some of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ROWS, PAGE = ROOT / "docs" / "tpu-fit.jsonl", ROOT / "docs" / "tpu-fit.md"
GIB = 2**30

#: Preset, accelerator, topology, slices, and what is set besides.
CASES: tuple[tuple[str, str, str, int, str], ...] = (
    ("1b", "v5e", "4x4", 1, "sequenceLength=2048 globalBatch=64"),
    ("1b", "v6e", "4x4", 2, "sequenceLength=2048 globalBatch=128"),
    ("llama3-8b", "v5e", "16x16", 1, "sequenceLength=8192 globalBatch=256"),
    ("llama3-8b", "v5p", "4x4x4", 1, "sequenceLength=8192 globalBatch=64"),
    ("llama3-8b", "v6e", "8x8", 2, "sequenceLength=8192 globalBatch=128"),
    ("llama3-70b", "v5p", "4x8x8", 1, "sequenceLength=8192 globalBatch=256"),
    ("llama3-70b", "v7", "4x4x8", 2, "sequenceLength=8192 globalBatch=512"),
    ("llama3-405b", "v5p", "8x16x16", 1, "sequenceLength=8192 globalBatch=512 mesh.tensor=4"),
)
#: Deep models compile in minutes, and fit, with these.
ALWAYS = ("model.scanLayers=true", "model.remat=full")


def main(argv: Sequence[str] | None = None) -> int:
    """Compile the cases that are asked for and write the page anew."""
    parser = argparse.ArgumentParser("bench.fit", description=__doc__)
    parser.add_argument("presets", nargs="*", help="only these presets (default: all)")
    parser.add_argument("--accelerator", help="only this one")
    parser.add_argument("--page", action="store_true", help="only write the page from its rows")
    options = parser.parse_args(argv)
    for case in () if options.page else CASES:
        if options.presets and case[0] not in options.presets:
            continue
        if options.accelerator in (None, case[1]):
            _keep(case, _checked(case))
            _write_page()
    _write_page()
    return 0


def _checked(case: tuple[str, str, str, int, str]) -> dict[str, Any]:
    preset, accelerator, topology, slices, settings = case
    command = [sys.executable, "-m", "tpujob_trainer", "check", "--preset", preset]
    command += ["--accelerator", accelerator, "--topology", topology, "--slices", str(slices)]
    for setting in (*settings.split(), *ALWAYS):
        command += ["--set", setting]
    found = ["bash", "tools/libtpu.sh", sys.prefix]
    library = subprocess.run(found, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    done = subprocess.run(
        ["nice", "-n", "15", *command, "--tries", "0", "-o", "json"],
        env={**os.environ, "TPU_LIBRARY_PATH": library.stdout.strip()},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if not done.stdout:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    versions = f"jax {metadata.version('jax')}, libtpu {_libtpu_version(library.stdout)}"
    return {**json.loads(done.stdout), "versions": versions}


def _libtpu_version(library: str) -> str:
    (folder,) = Path(library.strip()).parents[1].glob("libtpu-*.dist-info")
    return folder.name.removeprefix("libtpu-").removesuffix(".dist-info")


def _keep(case: tuple[str, str, str, int, str], answer: dict[str, Any]) -> None:
    rows = [row for row in _rows() if tuple(row["case"]) != case]
    rows.append({"case": case, **answer})
    order = {other: number for number, other in enumerate(CASES)}
    rows.sort(key=lambda row: order.get(tuple(row["case"]), len(CASES)))
    ROWS.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _rows() -> list[dict[str, Any]]:
    if not ROWS.exists():
        return []
    return [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]


def _write_page() -> None:
    lines = [_line(row) for row in _rows()]
    versions = ", ".join(sorted({row["versions"] for row in _rows()}))
    PAGE.write_text(HEAD.format(always=", ".join(ALWAYS), versions=versions) + "".join(lines))


HEAD = """# Which model fits which slices

Made by `python -m bench.fit` from compilations of the real train step by the real TPU compiler
({versions}), without a TPU; nothing was run. All with {always}. HBM is of one JAX device.
The MFU is an upper bound: the longest of computing, HBM, ICI and DCN at full speed, all at once.

| Preset | Slices | Settings | Fits | HBM, GiB | Upper bound of MFU | Bound by | Compiled in |
|---|---|---|---|---|---|---|---|
"""


def _line(row: dict[str, Any]) -> str:
    preset, _, _, _, settings = row["case"]
    fits = "yes" if row["fits"] else "no"
    memory = f"{row['memory']['total'] / GIB:.1f} of {row['hbmBytes'] / GIB:.1f}"
    bound = row["upperBound"]
    estimate = f"{bound['mfu']:.0%} | {bound['boundBy']}" if bound else "- | -"
    seconds = f"{row['compileSeconds']:.0f} s"
    cells = (preset, row["target"], settings, fits, memory, estimate, seconds)
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    sys.exit(main())
