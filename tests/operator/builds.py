"""Builds of the operator that a later release may be, or a broken one, made from this one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.operator.rig import ROOT

#: The next form of the ledger has another name for what a coordinator says when it gives up.
_STEPS = """
def _renamed(old: str, new: str) -> Callable[[State], State]:
    return lambda raw: {new if name == old else name: raw[name] for name in raw}


FORMS = Forms(
    newest=2,
    written=%d,
    steps={1: Step(_renamed("gaveUp", "lastWords"), _renamed("lastWords", "gaveUp"))},
)
"""


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, f"{path} has changed: {old!r} is not in it"
    path.write_text(text.replace(old, new))


def next_build(folder: Path, written: int) -> Path:
    """A later operator: next form of the ledger, a new status field, word and message.

    Args:
        folder: where.
        written: the form that it stores; it reads 1 and 2.
    """
    build = folder / f"next-{written}"
    shutil.copytree(ROOT / "operator", build, ignore=shutil.ignore_patterns("__pycache__"))
    package = build / "tpujob_operator"
    forms = package / "core/forms.py"
    _replace(forms, "FORMS = Forms(newest=1, written=1)\n", _STEPS % written)
    _replace(package / "core/history.py", '"gaveUp"', '"lastWords"')
    _replace(
        package / "api/status.py",
        "    attempt: int | None = Field(",
        '    flavour: str | None = Field(default=None, description="New.")\n'
        "    attempt: int | None = Field(",
    )
    warm = 'RUNNING = "Running"\n    WARM = "Warm"'
    _replace(package / "api/status.py", 'RUNNING = "Running"', warm)
    _replace(package / "core/status.py", "return State.RUNNING", "return State.WARM")
    _replace(
        package / "core/status.py",
        "        generation=history.generation,",
        '        flavour="vanilla",\n        generation=history.generation,',
    )
    _replace(
        package / "shell/coordinator_client.py",
        '            "takenAway": told.taken_away,',
        '            "takenAway": told.taken_away,\n            "ofTheNext": ["a message"],',
    )
    return build


def defective_build(folder: Path) -> Path:
    """An operator with a defect that shows with jobs of more than one slice."""
    build = folder / "defective"
    shutil.copytree(ROOT / "operator", build, ignore=shutil.ignore_patterns("__pycache__"))
    _replace(
        build / "tpujob_operator/core/decide.py",
        "    situation = _begin(snapshot, now_ms)\n    for policy",
        "    situation = _begin(snapshot, now_ms)\n"
        "    if snapshot.job and snapshot.job.spec.slices > 1:\n"
        '        raise TypeError("a defect")\n'
        "    for policy",
    )
    return build


def environment(build: Path) -> dict[str, str]:
    """Variables with which a build is run."""
    return {"PYTHONPATH": f"{build}:{ROOT / 'trainer'}"}


def crd_of(build: Path) -> dict[str, Any]:
    """The CRD that comes with a build."""
    code = (
        "import json; from tpujob_operator.api.crd import custom_resource_definition as crd; "
        "print(json.dumps(crd()))"
    )
    made = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment(build)},
        capture_output=True,
        text=True,
        check=True,
    )
    crd: dict[str, Any] = json.loads(made.stdout)
    return crd
