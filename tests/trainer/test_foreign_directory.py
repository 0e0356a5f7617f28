"""Somebody else's job names the checkpoint directory of a job that trains."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.worlds import Launcher, Trainer, small_config, wait_until
from tpujob_agent.protocol import Env

_FIRST, _NEXT = "4", "12"


def _as(job: str) -> dict[str, str]:
    return {
        Env.NAMESPACE: f"team-{job}",
        Env.JOB: job,
        Env.UID: f"uid-{job}",
        Env.ATTEMPT: "1",
        Env.GENERATION: "1",
    }


def _begin(launcher: Launcher) -> Trainer:
    """A job that trains for long, and has a checkpoint."""
    config = small_config(steps=1_000_000, checkpoint={"keep": 1_000})
    job = launcher.start(config, devices=2, env=_as("mine"))[0]
    wait_until((launcher.checkpoints / _FIRST).exists, "a checkpoint")
    return job


def _files(step: Path) -> dict[Path, bytes]:
    return {path.relative_to(step): path.read_bytes() for path in step.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"dModel": 64}}, "a model of other sizes"),
        ({"data": {"maxBytes": 100_000}}, "Rows would be read twice"),
        ({"seed": 8}, "seed"),
    ],
    ids=["another model", "other data", "another seed"],
)
def test_a_job_that_does_not_fit_is_refused_and_the_owner_trains_on(
    launcher: Launcher, changes: dict[str, Any], words: str
) -> None:
    """Nothing is renamed, removed or claimed, and the refused job says what does not fit."""
    mine = _begin(launcher)
    before = _files(launcher.checkpoints / _FIRST)
    theirs = launcher.run(small_config(**changes), devices=2, env=_as("theirs"))
    assert theirs.wait() == 1, theirs.output()
    told = theirs.output().splitlines()[-1]
    assert words in told
    assert str(launcher.checkpoints) in told
    wait_until((launcher.checkpoints / _NEXT).exists, "a later checkpoint of its owner")
    assert mine.process.poll() is None, mine.output()
    assert _files(launcher.checkpoints / _FIRST) == before
    names = {path.name for path in launcher.checkpoints.iterdir()}
    assert not [name for name in names if re.match(r"\d+\.(?!orbax-checkpoint-tmp)", name)]
