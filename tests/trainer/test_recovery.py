"""Real trainers are hit, and what comes after equals what would have been."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.worlds import Launcher, Trainer, kill, small_config, wait_until
from tpujob_agent.protocol import Env, ExitCode

STEPS = 40


@pytest.fixture(scope="module")
def uninterrupted(
    tmp_path_factory: pytest.TempPathFactory, session_dir: Path
) -> tuple[dict[int, float], Path]:
    """Losses and checkpoints of a run of two processes that nothing ever hit."""
    launcher = Launcher(tmp_path_factory.mktemp("uninterrupted"), session_dir)
    leader = launcher.run(_config(), processes=2, devices=2)
    assert leader.wait() == ExitCode.DONE, leader.output()
    return leader.losses(), launcher.checkpoints


def _config() -> dict[str, Any]:
    return small_config(steps=STEPS, checkpoint={"interval": "steps:10"})


def _steps(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal())


def _damage(checkpoint: Path) -> None:
    """Flip one bit in the middle of the largest file, as a bad disk would."""
    largest = max(checkpoint.rglob("*"), key=lambda p: p.stat().st_size if p.is_file() else 0)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 0x10
    largest.write_bytes(content)


def test_uninterrupted_run_learns(uninterrupted: tuple[dict[int, float], Path]) -> None:
    """Every step is reported, the loss falls, and the newest checkpoints are kept."""
    losses, checkpoints = uninterrupted
    assert sorted(losses) == list(range(1, STEPS + 1))
    assert losses[STEPS] < losses[1]
    assert _steps(checkpoints) == [20, 30, 40]


def test_resume_equals_uninterrupted_bit_for_bit(
    launcher: Launcher, uninterrupted: tuple[dict[int, float], Path]
) -> None:
    """After kill -9 of a process at any step, all losses are those of the run never hit."""
    expected, _ = uninterrupted
    world = launcher.start(_config(), processes=2, devices=2)
    hit_at = random.randint(11, 25)
    wait_until((launcher.checkpoints / "10").exists, "the first checkpoint")
    wait_until(lambda: hit_at in world[0].losses(), f"step {hit_at}")
    kill(random.choice(world))
    for trainer in world:
        kill(trainer)  # an agent would: survivors of a lost peer can do nothing more
    before = world[0].losses()
    resumed = launcher.run(_config(), processes=2, devices=2)
    assert resumed.wait() == ExitCode.DONE, resumed.output()
    assert "restored step" in resumed.output()
    assert before | resumed.losses() == expected
    assert {s: loss for s, loss in before.items() if expected[s] != loss} == {}


def test_slices_may_go_and_come_back(
    launcher: Launcher, uninterrupted: tuple[dict[int, float], Path]
) -> None:
    """With 1 slice and then 2, each step reads the rows it always would: the batch is the same."""
    expected, checkpoints = uninterrupted
    shutil.copytree(checkpoints, launcher.checkpoints)
    for step in (30, 40):
        shutil.rmtree(launcher.checkpoints / str(step))
    config = _config() | {"mesh": {"slice": 0, "fsdp": -1, "tensor": 2}}
    smaller = launcher.start(config, devices=2, env={Env.NUM_SLICES: "1"})[0]
    wait_until((launcher.checkpoints / "30").exists, "a checkpoint of the smaller world")
    kill(smaller)
    assert "slice 1, fsdp 1" in smaller.output()
    assert "restored step 20" in smaller.output()
    whole = launcher.run(config, processes=2, devices=2, env={Env.NUM_SLICES: "2"})
    assert whole.wait() == ExitCode.DONE, whole.output()
    assert "slice 2, fsdp 1" in whole.output()
    losses = smaller.losses() | whole.losses()
    assert sorted(losses) == list(range(21, STEPS + 1))
    # Sums over other devices are rounded otherwise; other rows would differ by far more.
    assert losses == pytest.approx({step: expected[step] for step in losses}, rel=1e-5)


def test_survivor_of_a_lost_peer_says_so(launcher: Launcher) -> None:
    """A process whose peer dies exits promptly, with the code for a lost peer or by SIGABRT."""
    world = launcher.start(small_config(steps=10_000), processes=2, devices=2)
    wait_until(lambda: 2 in world[0].losses(), "step 2")
    kill(world[1])
    assert world[0].wait() in {ExitCode.PEER_LOST, -6}, world[0].output()


def _resume_alone(
    launcher: Launcher, checkpoints: Path, env: dict[str, str] | None = None
) -> Trainer:
    if not launcher.checkpoints.exists():
        shutil.copytree(checkpoints, launcher.checkpoints)
    return launcher.run(_config(), devices=4, env=env)


def test_damaged_checkpoint_is_quarantined_and_the_previous_one_used(
    launcher: Launcher, uninterrupted: tuple[dict[int, float], Path]
) -> None:
    """One flipped bit in the newest checkpoint costs a few steps, and the file is kept."""
    expected, checkpoints = uninterrupted
    shutil.copytree(checkpoints, launcher.checkpoints)
    _damage(launcher.checkpoints / "40")
    world = launcher.start(_config(), processes=2, devices=2)
    assert world[0].wait() == ExitCode.DONE, world[0].output()
    assert "checkpoint of step 40 is bad" in world[0].output()
    assert "restored step 30" in world[0].output()
    assert len(list(launcher.checkpoints.glob("40.quarantined-*"))) == 1
    assert world[0].losses() == {step: expected[step] for step in range(31, STEPS + 1)}


@pytest.mark.parametrize("damage", ["truncated", "no metadata", "empty"])
def test_torn_checkpoint_is_passed_over(
    launcher: Launcher, uninterrupted: tuple[dict[int, float], Path], damage: str
) -> None:
    """Whatever is missing from the newest checkpoint, the one before it is taken."""
    shutil.copytree(uninterrupted[1], launcher.checkpoints)
    newest = launcher.checkpoints / "40"
    if damage == "truncated":
        largest = max(newest.rglob("*"), key=lambda p: p.stat().st_size if p.is_file() else 0)
        largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    elif damage == "no metadata":
        (newest / "_CHECKPOINT_METADATA").unlink()
    else:
        shutil.rmtree(newest)
        newest.mkdir()
    trainer = _resume_alone(launcher, uninterrupted[1])
    assert trainer.wait() == ExitCode.DONE, trainer.output()
    assert "restored step 30" in trainer.output()


def test_no_readable_checkpoint_exits_65(
    launcher: Launcher, uninterrupted: tuple[dict[int, float], Path]
) -> None:
    """When all are bad the trainer does not start afresh in silence, now or at the next start."""
    shutil.copytree(uninterrupted[1], launcher.checkpoints)
    for step in (20, 30, 40):
        _damage(launcher.checkpoints / str(step))
    first = _resume_alone(launcher, uninterrupted[1])
    assert first.wait() == ExitCode.CHECKPOINT_BAD, first.output()
    assert "none of the 3 checkpoints" in first.output()
    second = _resume_alone(launcher, uninterrupted[1])
    assert second.wait() == ExitCode.CHECKPOINT_BAD, second.output()


def test_step_ceiling_is_respected(
    launcher: Launcher, uninterrupted: tuple[dict[int, float], Path]
) -> None:
    """Nothing above the ceiling is restored; it is put aside under another name."""
    trainer = _resume_alone(launcher, uninterrupted[1], env={Env.STEP_CEILING: "33"})
    assert trainer.wait() == ExitCode.DONE, trainer.output()
    assert "restored step 30" in trainer.output()
    assert len(list(launcher.checkpoints.glob("40.superseded-*"))) == 1


def test_checkpoint_of_another_model_is_refused_and_untouched(
    launcher: Launcher, uninterrupted: tuple[dict[int, float], Path]
) -> None:
    """Changed sizes are a user's mistake: no checkpoint is quarantined for it."""
    shutil.copytree(uninterrupted[1], launcher.checkpoints)
    trainer = launcher.run(small_config(steps=STEPS, model={"dFF": 128}), devices=4)
    assert trainer.wait() == 1
    assert "another checkpoint directory" in trainer.output()
    assert _steps(launcher.checkpoints) == [20, 30, 40]


def test_kill_during_a_save_keeps_the_older_step(launcher: Launcher) -> None:
    """SIGKILL while files are being written leaves the last committed step, and it restores."""
    config = small_config(steps=10_000, checkpoint={"interval": "steps:3"})
    trainer = launcher.start(config, devices=4)[0]

    def is_saving() -> bool:
        names = [p.name for p in launcher.checkpoints.iterdir()] if _exists() else []
        committed = any(name.isdecimal() for name in names)
        return committed and any("orbax-checkpoint-tmp" in name for name in names)

    def _exists() -> bool:
        return launcher.checkpoints.exists()

    wait_until(is_saving, "a save under way after a committed one")
    kill(trainer)
    newest = _steps(launcher.checkpoints)[-1]
    again = launcher.start(config, devices=4)[0]
    wait_until(lambda: bool(again.losses()), "the first resumed step")
    kill(again)
    assert f"restored step {newest} " in again.output()
    assert min(again.losses()) == newest + 1
