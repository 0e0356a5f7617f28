"""A configuration that was edited reads every row once, or is refused in words."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.corpus import make_text, quiet
from tests.trainer.worlds import Launcher, small_config
from tpujob_agent.protocol import Env, ExitCode
from tpujob_checkpoint import claims
from tpujob_data import pack
from tpujob_data.manifest import Manifest
from tpujob_data.pack import Recipe
from tpujob_trainer import config as configs
from tpujob_trainer.continuation import origin_of, start_of
from tpujob_trainer.loader import Batches


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Packed text, 32 tokens a row."""
    return pack.ensure_pack(
        Recipe(str(make_text(tmp_path / "text")), (32,)), tmp_path / "pack", quiet
    )


def _origin(manifest: Manifest, **changes: Any) -> Any:
    raw = {**small_config(), "checkpoint": {"directory": "c"}, **changes}
    return origin_of(configs.load(raw), manifest)


def test_rows_go_on_at_the_first_unread_one(manifest: Manifest) -> None:
    """However often globalBatch changes: the rows of all steps follow each other without a gap."""
    before: dict[str, Any] = {}
    read: list[int] = []
    step = 0
    for global_batch, steps in ((4, 5), (6, 3), (6, 2), (2, 4), (8, 1)):
        origin = _origin(manifest, globalBatch=global_batch)
        assert origin.why_not(before, step) == ""
        start = start_of(before, step, global_batch)
        batches = Batches(manifest, seed=7, global_batch=global_batch, start=start)
        for number in range(step + 1, step + steps + 1):
            place = batches.place(number)
            read += range(place.first, place.first + place.size)
        step += steps
        before = origin.now | {"start": list(start)}
    assert read == list(range(len(read)))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"seed": 8}, "seed was 7 and is 8"),
        ({"sequenceLength": 64}, "sequenceLength and data.buckets was [32] and is [64]"),
    ],
)
def test_what_changes_the_order_is_refused(
    manifest: Manifest, changes: dict[str, Any], told: str
) -> None:
    """With the field, its former value and the present one, and what to do."""
    why_not = _origin(manifest, **changes).why_not(_origin(manifest).now, 40)
    assert told in why_not
    assert "Set it back" in why_not


def test_other_text_is_refused(manifest: Manifest) -> None:
    """By the sum over the packed rows."""
    shards = tuple(dataclasses.replace(shard, sha256="0" * 64) for shard in manifest.shards)
    other = dataclasses.replace(manifest, shards=shards)
    assert "the packed text was" in _origin(other).why_not(_origin(manifest).now, 4)


def test_buckets_are_drawn_for_one_global_batch(manifest: Manifest) -> None:
    """Their order follows from it: no row is the next one."""
    buckets = {"data": {"buckets": "16,32"}}
    former = _origin(manifest, **buckets).now
    assert "globalBatch was 4 and is 8" in _origin(manifest, globalBatch=8, **buckets).why_not(
        former, 4
    )
    assert _origin(manifest, globalBatch=4, **buckets).why_not(former, 4) == ""


def test_other_changes_are_the_users_to_make(manifest: Manifest) -> None:
    """Learning rate, number of steps, logging: the rows stay the same."""
    changed = _origin(manifest, steps=500, optimizer={"learningRate": 1e-4}, logEverySteps=7)
    assert changed.why_not(_origin(manifest).now, 4) == ""
    assert changed.why_not({}, 4) == ""  # what does not say what it was trained with


def test_edited_runs_go_on_or_are_refused(launcher: Launcher) -> None:
    """Another globalBatch goes on; another seed is refused, and the directory is not claimed."""
    env = {Env.JOB: "mine", Env.UID: "uid-1", Env.NAMESPACE: "research"}
    assert launcher.run(small_config(), devices=2, env=env).wait() == ExitCode.DONE
    claim = (launcher.checkpoints / claims.FILE).read_bytes()
    names = sorted(path.name for path in launcher.checkpoints.iterdir())
    other = launcher.run(small_config(seed=8, steps=16), devices=2, env={**env, Env.UID: "uid-2"})
    assert other.wait() == 1
    assert "seed was 7 and is 8" in other.output().splitlines()[-1]
    assert (launcher.checkpoints / claims.FILE).read_bytes() == claim
    assert sorted(path.name for path in launcher.checkpoints.iterdir()) == names
    larger = launcher.run(small_config(globalBatch=8, steps=16), devices=2, env=env)
    assert larger.wait() == ExitCode.DONE, larger.output()
    assert "globalBatch is now 8: rows go on at row 48" in larger.output()
    assert sorted(larger.losses()) == [13, 14, 15, 16]
    again = launcher.run(small_config(globalBatch=8, steps=20), devices=2, env=env)
    assert again.wait() == ExitCode.DONE, again.output()
    assert "rows go on" not in again.output()
