"""Whatever happens to the files of either tier: no bad state, and no good one lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.trainer.mounts import mounted, needs_mount
from tests.trainer.victims import Rig, small_files
from tests.trainer.worlds import ROOT, Launcher, kill, small_config, wait_until
from tpujob_agent.protocol import ExitCode
from tpujob_checkpoint.errors import CheckpointBadError

pytestmark = pytest.mark.usefixtures("no_garbage")

OLDER, NEWER = 4, 9
TIERS = ("checkpoints", "snapshots")
NEWEST = {"checkpoints": f"checkpoints/{NEWER}", "snapshots": f"snapshots/{NEWER}.snapshot"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """Two steps in both tiers, saved as a run would, with a copy beside them."""
    rig = Rig(tmp_path_factory.mktemp("rig"), devices=4)
    with closing(rig.saver()) as saver:
        for step in (OLDER, NEWER):
            rig.save(saver, step)
    for tier in TIERS:
        shutil.copytree(rig.directory / tier, rig.directory / "pristine" / tier)
    return rig


def _reset(rig: Rig, *tiers: str) -> None:
    """Bring the files of these tiers back, and remove those of the others."""
    for tier in TIERS:
        shutil.rmtree(rig.directory / tier, ignore_errors=True)
        if tier in tiers:
            shutil.copytree(rig.directory / "pristine" / tier, rig.directory / tier)


def _restored(rig: Rig) -> int:
    """The step that a fresh process restores; its state is checked bit for bit."""
    with closing(rig.saver()) as saver:
        restored = saver.restore(None)
    assert restored.state is None or rig.is_state_of(restored.step, restored.state)
    return restored.step


def _flip(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


def _files(place: Path) -> list[Path]:
    """Ten of them: each of a checkpoint's files once at least, or a snapshot again and again."""
    found = sorted(p for p in [place, *place.rglob("*")] if p.is_file() and p.stat().st_size)
    return (found * 10)[: max(10, len(found))]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("tier", TIERS)
def test_flipped_bit_is_never_resumed_from(
    saved: Rig, tier: str, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bit in any file of the newest step: it comes back exact, or the one before it does."""
    bits = random.Random(seed)
    older = 0
    for file in _files(saved.directory / "pristine" / NEWEST[tier]):
        _reset(saved, tier)
        bit = bits.randrange(8 * file.stat().st_size)
        _flip(saved.directory / file.relative_to(saved.directory / "pristine"), bit)
        step = _restored(saved)
        output = capsys.readouterr().out
        assert step in {OLDER, NEWER}, (file, bit)
        assert (f"of step {NEWER} " in output) is (step == OLDER), (file, bit, output)
        older += step == OLDER
    assert older


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("damage", ["truncated", "empty", "missing"])
def test_every_torn_file_is_survived(saved: Rig, tier: str, damage: str) -> None:
    """A file of the newest step cut, emptied or gone: nothing bad, at least the older."""
    for file in set(_files(saved.directory / "pristine" / NEWEST[tier])):
        _reset(saved, tier)
        target = saved.directory / file.relative_to(saved.directory / "pristine")
        if damage == "missing":
            target.unlink()
        else:
            os.truncate(target, target.stat().st_size // 2 if damage == "truncated" else 0)
        assert _restored(saved) in {OLDER, NEWER}, file


def test_bad_snapshot_falls_back_to_the_checkpoint_of_the_same_step(saved: Rig) -> None:
    """The tiers stand in for each other: no step is lost while one of them is good."""
    _reset(saved, *TIERS)
    size = (saved.directory / NEWEST["snapshots"]).stat().st_size
    _flip(saved.directory / NEWEST["snapshots"], 8 * (size // 3))
    assert _restored(saved) == NEWER


def test_good_snapshot_outlives_bad_checkpoints(saved: Rig) -> None:
    """With all checkpoints bad the snapshot is taken; without it, it is an error in words."""
    for tiers, expected in ((TIERS, NEWER), (("checkpoints",), 0)):
        _reset(saved, *tiers)
        for step in (OLDER, NEWER):
            (saved.checkpoints / str(step) / "step.json").unlink()
        names = _names(saved)
        if expected:
            assert _restored(saved) == expected
        else:
            with pytest.raises(CheckpointBadError, match="none of the 2 checkpoints"):
                _restored(saved)
            assert _names(saved) == names  # the last candidates stay where they are


def test_memory_that_fills_up_costs_only_the_snapshots(
    saved: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that finds no room is the last one, with the reason; the one before it restores."""
    _reset(saved, "snapshots")
    with closing(saved.saver()) as saver:
        assert saver.restore(None).step == NEWER
        with small_files():
            saved.save(saver, NEWER + 1, durable=False)
        assert f"step {NEWER + 1} was not written: File too large" in capsys.readouterr().out
        saved.save(saver, NEWER + 2, durable=False)
    assert _restored(saved) == NEWER


def test_ceiling_holds_for_both_tiers(saved: Rig) -> None:
    """Nothing above the ceiling is restored, and what lies above in memory is forgotten."""
    _reset(saved, *TIERS)
    with closing(saved.saver()) as saver:
        assert saver.restore(NEWER - 1).step == OLDER
    assert [path.name for path in saved.snapshots.glob("*.snapshot")] == [f"{OLDER}.snapshot"]


def test_snapshot_of_another_mesh_is_refused(saved: Rig) -> None:
    """Shards of other devices fit nowhere: the checkpoint is taken, which fits every mesh."""
    _reset(saved, *TIERS)
    shutil.rmtree(saved.checkpoints / str(NEWER))
    other = Rig(saved.directory, devices=2)
    with closing(other.saver()) as saver:
        restored = saver.restore(None)
    assert restored.step == OLDER
    assert other.is_state_of(OLDER, restored.state)


def _names(rig: Rig) -> list[str]:
    places = [*rig.checkpoints.glob("[0-9]*"), *rig.snapshots.glob("*.snapshot")]
    return sorted(path.name for path in places)


def test_twenty_kills_during_saves(tmp_path: Path) -> None:
    """SIGKILL at random moments (seed 11): never a bad state, never less than was committed."""
    command = [sys.executable, "-m", "tests.trainer.victims", str(tmp_path), "11", "20"]
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    env = (
        os.environ
        | flags
        | {"PYTHONPATH": f"{ROOT}:{ROOT / 'trainer'}", "OPENBLAS_NUM_THREADS": "1"}
    )
    output = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    told = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert len(told) == 20
    assert all(victim["isGood"] for victim in told), told
    assert all(victim["step"] >= max(victim["committed"], default=0) for victim in told), told
    assert max(victim["step"] for victim in told) > 1  # some lived to save more than once


@needs_mount
def test_full_disk_ends_the_run_in_words_and_keeps_the_last_good_step(
    launcher: Launcher, tmp_path: Path
) -> None:
    """No space for a checkpoint: exit 74 with step and reason; what was committed restores."""
    config = small_config(steps=1000, checkpoint={"interval": "steps:2", "keep": 100})
    copy = tmp_path / "copy"
    trainer = launcher.start(
        config, devices=2, prefix=mounted(launcher.checkpoints, "size=2m", copy)
    )[0]
    assert trainer.wait() == ExitCode.STORAGE_UNAVAILABLE, trainer.output()
    assert "could not be written to" in trainer.output()
    assert "No space left on device" in trainer.output()
    newest = max(int(path.name) for path in copy.iterdir() if path.name.isdecimal())
    shutil.rmtree(launcher.checkpoints)
    shutil.move(copy, launcher.checkpoints)
    again = launcher.start(small_config(steps=1000), devices=2)[0]
    wait_until(lambda: bool(again.losses()), "the first resumed step")
    kill(again)
    assert f"restored step {newest} " in again.output()


@needs_mount
@pytest.mark.parametrize(
    ("options", "reason"),
    [("size=1m", "MiB free and"), ("size=200m,ro", "Read-only file system")],
)
def test_unusable_memory_only_costs_the_snapshots(
    launcher: Launcher, tmp_path: Path, options: str, reason: str
) -> None:
    """A full or read-only volume: it is said why there are no snapshots, and training goes on."""
    memory = tmp_path / "memory"
    prefix = mounted(memory / "0", options, tmp_path / "copy")
    trainer = launcher.start(small_config(), devices=2, snapshots=memory, prefix=prefix)[0]
    assert trainer.wait() == ExitCode.DONE, trainer.output()
    assert "no snapshots in memory on process 0" in trainer.output()
    assert reason in trainer.output()


@needs_mount
def test_read_only_checkpoint_directory_is_refused_at_the_start(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Before anything is computed, and with the reason."""
    prefix = mounted(launcher.checkpoints, "size=1m,ro", tmp_path / "copy")
    trainer = launcher.start(small_config(), devices=2, prefix=prefix)[0]
    assert trainer.wait() == 1
    assert "Read-only file system" in trainer.output()
