"""The program as a user starts it: mistakes end it at once, with one sentence that helps."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.trainer.worlds import Launcher, small_config
from tpujob_agent.protocol import Env
from tpujob_checkpoint import distributed
from tpujob_checkpoint.checkpoint import require_writable
from tpujob_checkpoint.errors import CheckpointUnusableError


def test_faulty_config_exits_1_with_all_faults(launcher: Launcher) -> None:
    """Before JAX is even imported, every fault is printed with its path."""
    trainer = launcher.run(small_config(steps=0, model={"heads": 3, "kvHeads": 3}))
    assert trainer.wait() == 1
    assert "configuration has 2 problems" in trainer.output()
    assert "steps: 0 is below 1" in trainer.output()
    assert "Traceback" not in trainer.output()


def test_mesh_that_does_not_divide_exits_1(launcher: Launcher) -> None:
    """Devices are known only after the start, and the answer is still one sentence."""
    trainer = launcher.run(small_config(mesh={"tensor": 3}))
    assert trainer.wait() == 1
    assert "with slice 1, fsdp x tensor can be 4x1, 2x2, 1x4" in trainer.output()
    assert "Traceback" not in trainer.output()


def test_step_is_compiled_once(launcher: Launcher, tmp_path: Path) -> None:
    """By JAX's own log, in a run with saves."""
    env = {Env.CACHE_DIR: str(tmp_path / "programs"), "JAX_LOG_COMPILES": "1"}
    trainer = launcher.run(small_config(), env=env)
    assert trainer.wait() == 0
    assert "finished 12 steps" in trainer.output()
    assert trainer.output().count("Finished XLA compilation of jit(train_step)") == 1


def test_run_whose_loss_stays_no_number_exits_1(launcher: Launcher) -> None:
    """Steps without a number are skipped and told, then the run ends and names the step."""
    absurd = {"learningRate": 1e30, "warmupSteps": 0}
    trainer = launcher.run(small_config(optimizer=absurd, maxSkippedSteps=2))
    assert trainer.wait() == 1
    skips = [
        json.loads(line) for line in trainer.output().splitlines() if line.startswith('{"event"')
    ]
    assert [skip["inARow"] for skip in skips] == [1, 2, 3]
    last = skips[-1]["step"]
    assert f"step {last} has a loss of" in trainer.output()
    assert "(maxSkippedSteps 2): lower optimizer.learningRate" in trainer.output()
    assert "Traceback" not in trainer.output()


def test_missing_text_exits_1(launcher: Launcher) -> None:
    """A source that is no directory is named."""
    trainer = launcher.run(small_config(data={"source": "/no/such/text"}))
    assert trainer.wait() == 1
    assert "'/no/such/text' is neither stdlib nor a directory" in trainer.output()


def test_unusable_checkpoint_directory_exits_1(launcher: Launcher) -> None:
    """A checkpoint directory that cannot be made is named, with the user who cannot."""
    launcher.checkpoints.write_text("a file where a directory should be")
    trainer = launcher.run(small_config())
    assert trainer.wait() == 1
    assert f"{launcher.checkpoints} is not writable by user id {os.geteuid()}" in trainer.output()
    assert "Traceback" not in trainer.output()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_directory_of_another_user_is_not_writable(tmp_path: Path) -> None:
    """Ordinary permissions are noticed before the first save."""
    directory = tmp_path / "theirs"
    directory.mkdir(mode=0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(CheckpointUnusableError, match="not writable by user id 65534"):
            require_writable(str(directory))
    finally:
        os.seteuid(0)


def test_world_is_read_from_jax_variables() -> None:
    """The agent's variables describe the world; without them it is a single process."""
    assert distributed.world_from({}) == distributed.World()
    env = {
        Env.JAX_COORDINATOR_ADDRESS: "10.0.0.1:20001",
        Env.JAX_NUM_PROCESSES: "4",
        Env.JAX_PROCESS_ID: "3",
        Env.NUM_SLICES: "2",
    }
    assert distributed.world_from(env) == distributed.World(3, 4, 2, "10.0.0.1:20001")
    slow = distributed.world_from({**env, Env.HEARTBEAT_S: "45"})
    assert (slow.heartbeat_s, distributed.HEARTBEAT_TIMEOUT_S) == (45, 30)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [(Env.JAX_PROCESS_ID, "", "is set, but JAX_PROCESS_ID is not"),
     (Env.JAX_NUM_PROCESSES, "four", "JAX_NUM_PROCESSES is 'four', which is no number")],
)  # fmt: skip
def test_half_described_world_is_refused(name: str, value: str, expected: str) -> None:
    """A world that is only half described is an error, not a world of one."""
    env = {
        Env.JAX_COORDINATOR_ADDRESS: "10.0.0.1:20001",
        Env.JAX_NUM_PROCESSES: "4",
        Env.JAX_PROCESS_ID: "3",
        name: value,
    }
    with pytest.raises(ValueError, match=expected):
        distributed.world_from(env)
