"""Worlds of two processes go on from memory, or together from an older state."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path

from tests.trainer.worlds import Launcher, Trainer, kill, small_config, wait_until
from tpujob_agent.protocol import Env, ExitCode

CONFIG = small_config(
    steps=100_000, checkpoint={"interval": "steps:1000000", "snapshotSeconds": 0.2}
)


def _steps(memory: Path, rank: int) -> list[int]:
    return sorted(int(path.stem) for path in (memory / str(rank)).glob("*.snapshot"))


def _common(memory: Path) -> list[int]:
    return sorted(set(_steps(memory, 0)) & set(_steps(memory, 1)))


def _started(launcher: Launcher, memory: Path) -> list[Trainer]:
    world = launcher.start(CONFIG, processes=2, devices=2, snapshots=memory)
    wait_until(lambda: bool(world[0].losses()), "the first step")
    return world


def _killed(world: list[Trainer]) -> dict[int, float]:
    for trainer in world:
        kill(trainer)
    return world[0].losses()


def test_crash_bad_memory_lost_memory_and_leaving(launcher: Launcher, tmp_path: Path) -> None:
    """All ranks take the newest step whole everywhere, or the checkpoint; 42 when asked to go."""
    memory = tmp_path / "memory"
    world = _started(launcher, memory)
    wait_until(lambda: len(_common(memory)) == 2, "two snapshots on both ranks")
    expected = _killed(world)

    older, newest = _common(memory)[-2:] if len(_common(memory)) > 1 else (0, _common(memory)[-1])
    damaged = memory / "1" / f"{newest}.snapshot"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 3] ^= 4
    damaged.write_bytes(content)
    world = _started(launcher, memory)
    assert f"snapshot of step {newest} is bad: checksum differs" in world[1].output()
    if older:
        assert f"restored step {older} from memory" in world[0].output()
    known = set(world[0].losses()) & set(expected)
    assert all(world[0].losses()[step] == expected[step] for step in known)

    world[1].process.send_signal(signal.SIGTERM)
    assert [trainer.wait() for trainer in world] == [ExitCode.PREEMPTED] * 2, world[0].output()
    (checkpoint,) = [p.name for p in launcher.checkpoints.iterdir() if p.name.isdecimal()]
    assert f"asked to leave: saved step {checkpoint}" in world[0].output()

    shutil.rmtree(memory / "0")  # a pod that was replaced
    world = _started(launcher, memory)
    _killed(world)
    assert f"restored step {checkpoint} from {launcher.checkpoints}" in world[0].output()


#: What any start may trace: the shapes of the optimizer's state, and the probe of the devices.
_NO_PROGRAMS = {"init_fn", "_work"}


def _traced(trainer: Trainer) -> set[str]:
    """Functions that were traced or compiled, by JAX's own log."""
    found = re.findall(r"Finished (?:tracing|XLA compilation of) (\S+)", trainer.output())
    return {name.removeprefix("jit(").removesuffix(")") for name in found}


def test_resume_traces_and_compiles_nothing(launcher: Launcher, tmp_path: Path) -> None:
    """From either tier a second start of a world runs the first one's programs as they are.

    A new pod has none of its own, and takes those beside the checkpoints.
    """
    memory, programs, aside = tmp_path / "memory", tmp_path / "programs", tmp_path / "aside"
    env = {
        Env.CACHE_DIR: str(programs),
        Env.PROGRAMS_KEY: "of this job",
        "JAX_LOG_COMPILES": "1",
    }

    def resumed() -> str:
        """What the leader of another start says, after it was looked at for traces."""
        kept = CONFIG | {"checkpoint": {**CONFIG["checkpoint"], "keepPrograms": True}}
        world = launcher.start(kept, processes=2, devices=2, env=env, snapshots=memory)
        wait_until(lambda: bool(world[0].losses()), "the first step")
        _killed(world)
        assert [_traced(trainer) - _NO_PROGRAMS for trainer in world] == [set(), set()]
        return world[0].output()

    saving = small_config(
        steps=100_000, checkpoint={"interval": "steps:5", "keep": 1000, "keepPrograms": True}
    )
    world = launcher.start(saving, processes=2, devices=2, env=env, snapshots=memory)
    for folder in (programs, launcher.checkpoints / "programs"):
        wait_until(lambda: len(list(folder.glob("digest-*.bin"))) == 2, "the last program of each")  # noqa: B023 - called at once
    wait_until((launcher.checkpoints / "5").exists, "a checkpoint")
    wait_until(lambda: bool(_common(memory)), "a snapshot on both ranks")
    _killed(world)
    assert all("train_step" in _traced(trainer) for trainer in world)

    launcher.checkpoints.rename(aside)
    assert "from memory in" in resumed()
    shutil.rmtree(memory)
    shutil.rmtree(programs)
    shutil.rmtree(launcher.checkpoints)
    aside.rename(launcher.checkpoints)
    assert f"from {launcher.checkpoints} in" in resumed()
