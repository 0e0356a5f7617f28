"""A program that was not written for us: one of flax's own examples, run as it is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from localcluster.cache import cache_dir, locked
from tests.agent.rig import ROOT, rig
from tpujob_agent.protocol import Env, EventKind

_EXAMPLE = "examples/nnx_toy_examples/02_lifted_transforms.py"
_LOCK = ROOT / "requirements" / "dev.txt"


@pytest.fixture(scope="module")
def example() -> Path:
    """The example from flax's source distribution, which the lock pins; wheels have none."""
    [pins] = [
        entry
        for entry in re.split(r"\n(?=\S)", _LOCK.read_text())
        if re.match(r"flax==\S+ ; python_full_version < ", entry)
    ]
    pins = re.sub(r" ; [^\\]*", " ", pins, count=1)  # the source is one for every Python
    version = pins.split()[0].removeprefix("flax==")
    folder = cache_dir("flax")
    path = folder / version / _EXAMPLE
    with locked(folder / "lock"):
        if not path.exists():
            _fetch(pins, path)
    return path


def _fetch(pins: str, path: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "flax.txt").write_text(f"{pins}\n")
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                *("--no-binary=flax", "--require-hashes", "--requirement=flax.txt"),
            ],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"flax's source is not to be had: {done.stderr.strip()[-300:]}")
        [archive] = folder.glob("flax-*.tar.gz")
        with tarfile.open(archive) as source:
            [member] = [m for m in source.getmembers() if m.name.endswith(_EXAMPLE)]
            content = source.extractfile(member)
            assert content is not None
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read())


def test_flaxs_own_example_survives_a_kill(tmp_path: Path, example: Path) -> None:
    """It knows nothing of us and saves nothing: it is followed by its output, and begins anew."""
    with rig(tmp_path, slices=1, hosts=1) as job:
        env = {
            "JAX_PLATFORMS": "cpu",
            "MPLBACKEND": "agg",
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "ignore",
            Env.PRELOAD: "jax,flax,optax",
            Env.PROGRESS_PATTERN: r"step: (?P<step>\d+)",
        }
        job.start([sys.executable, str(example)], env=env)
        job.wait_event(EventKind.PROGRESS)
        os.kill(job.trainer_pid(0, 0), signal.SIGKILL)
        loss = job.wait_event(EventKind.LOSS)["data"]
        assert (loss["cause"], loss["signal"]) == ("process", signal.SIGKILL)
        assert loss["step"] >= 1000
        again = job.wait_event(EventKind.PROGRESS, generation=2)["data"]
        assert again["firstStep"] <= 1000
        job.wait_event(EventKind.FINISHED)
        text = job.agents[0, 0].text
        assert text.count("step: 1000,") == 2, "it has no checkpoint to resume from"
        assert text.count("times called:") == 1
