"""The uninterrupted course of the demo's losses, measured once per image and machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localcluster.cache import cache_dir


def losses_of(
    manifest: dict[str, Any], image_key: str, run: Callable[[], dict[int, float]]
) -> dict[int, float]:
    """Losses by step of the job as it goes when nothing hits it.

    They depend on the program, its configuration and the processor's instructions (XLA
    compiles for them), so they are kept under a key of all three, and measured by ``run``
    where there are none.
    """
    path = cache_dir("demo") / f"losses-{_key(manifest, image_key)}.json"
    if path.exists():
        return _read(path)
    losses = run()
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({str(step): loss for step, loss in sorted(losses.items())}))
    draft.replace(path)
    return losses


def is_known(manifest: dict[str, Any], image_key: str) -> bool:
    """Whether the course need not be measured."""
    return (cache_dir("demo") / f"losses-{_key(manifest, image_key)}.json").exists()


def _read(path: Path) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in json.loads(path.read_text()).items()}


def _key(manifest: dict[str, Any], image_key: str) -> str:
    parts = [json.dumps(manifest["spec"], sort_keys=True), image_key, _processor()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("flags", "Features")):
            return line
    return "unknown"
