"""What docs/health.md gives programs that want to report their step's compilations."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.agent.rig import ROOT
from tpujob.record import RecordReader
from tpujob_agent.protocol import Env

_SNIPPET = re.compile(r"^### Compiled again\n.*?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_STEPS = """
import sys
import jax, jax.numpy as jnp
import tpujob
{snippet}

@jax.jit
def train_step(x):
    return 2 * x

@jax.jit
def another(x):
    return x + 1

for width in map(int, sys.argv[1:]):
    train_step(jnp.ones(width))
    another(jnp.ones(width))
"""


def _recompiles(folder: Path, *widths: int) -> int:
    """What a program's record says after steps of these widths."""
    found = _SNIPPET.search((ROOT / "docs" / "health.md").read_text())
    assert found
    reader = RecordReader(folder / "record", 1)
    command = [sys.executable, "-c", _STEPS.format(snippet=found[1]), *map(str, widths)]
    own = {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT / "trainer"),
        Env.RECORD: str(folder / "record"),
    }
    subprocess.run(command, env=os.environ | own, check=True)
    return reader.read().recompiles


def test_only_further_shapes_of_the_step_are_recompilations(tmp_path: Path) -> None:
    """The first compilation is none, nor is what other programs compile."""
    assert _recompiles(tmp_path, 3, 3, 3) == 0
    assert _recompiles(tmp_path, 3, 4, 3, 5) == 2
