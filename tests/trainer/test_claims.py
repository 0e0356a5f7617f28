"""Two worlds on one checkpoint directory: only the one that began last commits."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import pytest
from etils import epath
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.buckets import Service
from tests.trainer.victims import Rig
from tests.trainer.worlds import Launcher, small_config, wait_until
from tpujob_agent.protocol import Env, ExitCode
from tpujob_checkpoint import claims
from tpujob_checkpoint.claims import Claim, Claims, SharedDirectoryError, SupersededError
from tpujob_checkpoint.saving import Saver

pytestmark = pytest.mark.usefixtures("no_garbage")

_BEGINNINGS = st.lists(st.sampled_from(["", "a", "b", "c"]), max_size=12)


@given(_BEGINNINGS)
def test_one_claim_is_good_and_jobs_never_take_turns(jobs: list[str]) -> None:
    """The last world that was let in commits; a job that another one has followed is not."""
    held: list[Claim] = []
    for number, job in enumerate(jobs):
        last = held[-1] if held else None
        try:
            held.append(claims.following(last, str(number), f"world {number}", job))
        except SharedDirectoryError:
            assert last
            assert job in last.jobs[:-1]
    for claim in held[:-1]:
        with pytest.raises((SupersededError, SharedDirectoryError), match=held[-1].who):
            claims.require_newest(claim, held[-1])
    for claim in held[-1:]:
        claims.require_newest(claim, claim)
        claims.require_newest(claim, None)
    for claim in held:
        named = [job for job in claim.jobs if job]
        assert named == list(dict.fromkeys(job for job in jobs if job))[: len(named)]


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("a", "a", SupersededError),
        ("", "", SupersededError),
        ("a", "b", SharedDirectoryError),
    ],
)
def test_world_of_the_same_job_is_an_old_one(old: str, new: str, error: type[Exception]) -> None:
    """The same job goes on by itself; another job on its directory is somebody's mistake."""
    first = claims.following(None, "1", "first", old)
    second = claims.following(first, "2", "second", new)
    with pytest.raises(error, match="second"):
        claims.require_newest(first, second)


def test_same_job_submitted_again_takes_over() -> None:
    """Another object of the same name is another job, and the later one."""
    first = claims.following(None, "1", "first", "uid-1")
    again = claims.following(first, "2", "again", "uid-2")
    resumed = claims.following(again, "3", "resumed", "uid-2")
    claims.require_newest(resumed, resumed)
    with pytest.raises(SharedDirectoryError, match="resumed"):
        claims.following(resumed, "4", "old", "uid-1")


def _old_world_is_refused(rig: Rig, listed: Callable[[], list[str]]) -> None:
    with closing(rig.saver()) as old, closing(rig.saver()) as new:
        old.restore(None)
        rig.save(old, 4, local=False)
        with pytest.raises(SupersededError, match="a newer world has begun"):
            _write_while(rig, old, 9, lambda: new.restore(None))
        with pytest.raises(SupersededError):
            rig.save(old, 14, local=False)
        assert not any(name.startswith("14") for name in listed())
        rig.save(new, 9, local=False)
    with closing(rig.saver()) as later:
        restored = later.restore(None)
        assert restored.step == 9
        assert rig.is_state_of(9, restored.state)


def _write_while(rig: Rig, saver: Saver, step: int, act: Callable[[], Any]) -> None:
    """Write a checkpoint, and do something after its start and before its end."""
    state = rig.state(step)
    shares = jax.block_until_ready(rig.programs.of_state.shares()(state))

    def take() -> Any:
        act()
        return state

    saver._checkpoints.write(step, take, shares, lambda: pytest.fail("it was told as durable"))


def test_old_world_commits_nothing(tmp_path: Path) -> None:
    """Not what it begins to save, and not what it is saving when the newer one begins."""
    rig = Rig(tmp_path)
    _old_world_is_refused(rig, lambda: sorted(p.name for p in rig.checkpoints.iterdir()))


def test_old_world_commits_nothing_to_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same where nothing is renamed."""
    service = Service("gs", tmp_path / "service")
    for name, value in service.env.items():
        monkeypatch.setenv(name, value)
    service.start()
    try:
        _old_world_is_refused(Rig(tmp_path, checkpoints=service.url), service.names)
        assert service.committed() == [4, 9]
    finally:
        service.kill()


def test_world_that_comes_back_saves_nothing_beside_its_replacement(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Frozen and still alive: its next save is refused, and nothing of the other's has changed."""
    config = small_config(steps=100)
    old = launcher.start(config, devices=2)[0]
    wait_until((launcher.checkpoints / "4").exists, "the first checkpoint")
    old.process.send_signal(signal.SIGSTOP)
    elsewhere = config | {"checkpoint": {"interval": "steps:4", "directory": str(tmp_path / "a")}}
    untouched = launcher.start(elsewhere, devices=2)[0]
    new = launcher.run(config, devices=2)
    assert new.wait() == ExitCode.DONE, new.output()
    files = _files(launcher.checkpoints)
    old.process.send_signal(signal.SIGCONT)
    assert old.wait() == ExitCode.SUPERSEDED, old.output()
    assert "a newer world has begun" in old.output().splitlines()[-1]
    assert _files(launcher.checkpoints) == files
    assert untouched.wait() == ExitCode.DONE, untouched.output()
    expected = untouched.losses()
    assert "restored step" in new.output()
    assert new.losses() == {step: loss for step, loss in expected.items() if step in new.losses()}


def _files(directory: Path) -> dict[Path, int]:
    """When each file was changed last, of all that counts.

    A save under way when the world froze goes on writing until it asks whether it may commit.
    """
    found = (path for path in directory.rglob("*") if "orbax-checkpoint-tmp" not in str(path))
    return {path: path.stat().st_mtime_ns for path in found}


def test_all_processes_of_an_old_world_end(launcher: Launcher) -> None:
    """The leader says why, and the others follow it, long before their last step."""
    old = launcher.start(small_config(steps=1_000_000), processes=2, devices=2)
    wait_until((launcher.checkpoints / "4").exists, "a checkpoint")
    Claims(epath.Path(launcher.checkpoints), {}).take()
    assert old[0].wait() == ExitCode.SUPERSEDED, old[0].output()
    assert old[1].wait() in {ExitCode.PEER_LOST, -signal.SIGABRT}, old[1].output()


def test_two_jobs_on_one_directory_are_told_apart(launcher: Launcher) -> None:
    """The later one trains; the earlier one ends with the other's name, and stays away."""
    place = {Env.NAMESPACE: "research", Env.ATTEMPT: "1", Env.GENERATION: "1"}
    mine = place | {Env.JOB: "mine", Env.UID: "uid-1"}
    other = place | {Env.JOB: "other", Env.UID: "uid-2"}
    config = small_config(steps=1_000_000)
    first = launcher.start(config, devices=2, env=mine)[0]
    wait_until((launcher.checkpoints / "4").exists, "a checkpoint of the first job")
    first.process.send_signal(signal.SIGSTOP)
    second = launcher.run(small_config(), devices=2, env=other)
    assert second.wait() == ExitCode.DONE, second.output()
    first.process.send_signal(signal.SIGCONT)
    assert first.wait() == 1, first.output()
    told = first.output().splitlines()[-1]
    assert "taken over by another job (research/other, attempt 1" in told
    assert launcher.run(config, devices=2, env=mine).wait() == 1
    (launcher.checkpoints / claims.FILE).unlink()
    assert launcher.run(small_config(), devices=2, env=mine).wait() == ExitCode.DONE
