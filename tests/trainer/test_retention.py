"""Which checkpoints stay, and what of a directory is none of ours."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from etils import epath

from tests.trainer.victims import Rig
from tpujob_agent.protocol import Env
from tpujob_checkpoint.claims import FILE, Claims
from tpujob_checkpoint.errors import CheckpointUnusableError


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Of two devices, which keeps three checkpoints."""
    return Rig(tmp_path)


def _names(rig: Rig) -> list[str]:
    return sorted(p.name for p in rig.checkpoints.iterdir() if p.name != FILE)


def _kinds(rig: Rig) -> list[str]:
    return sorted(name.partition("-")[0] for name in _names(rig))


def _save(rig: Rig, *steps: int) -> None:
    with closing(rig.saver()) as saver:
        saver.restore(None)
        for step in steps:
            rig.save(saver, step, local=False)


def test_a_higher_step_of_another_world_removes_no_good_one(rig: Rig) -> None:
    """What was read back stays, and newest counts from there."""
    with closing(rig.saver()) as saver:
        saver.restore(None)
        rig.save(saver, 4, local=False)
        for late in ("70", "80", "90"):  # committed late by a world that was cut off
            (rig.checkpoints / late).mkdir()
        for step in (5, 6, 7):
            rig.save(saver, step, local=False)
    assert _names(rig) == ["5", "6", "7", "70", "80", "90"]


def test_a_step_in_the_way_of_a_save_is_put_aside(rig: Rig) -> None:
    """Left by a world that was cut off after this one had looked; it costs no restart."""
    with closing(rig.saver()) as saver:
        saver.restore(None)
        (rig.checkpoints / "4").mkdir()
        rig.save(saver, 4, local=False)
    assert _kinds(rig) == ["4", "4.superseded"]
    with closing(rig.saver()) as saver:
        assert saver.restore(None).step == 4


def test_steps_put_aside_do_not_pile_up(rig: Rig) -> None:
    """The newest two of each kind stay."""
    _save(rig, 1)
    for kind in ("quarantined", "superseded"):
        for number in (3, 1, 2, 10):
            (rig.checkpoints / f"{number}.{kind}-{1_000 + number}").mkdir()
    _save(rig, 2)
    kept = ["10.quarantined-1010", "10.superseded-1010", "3.quarantined-1003", "3.superseded-1003"]
    assert _names(rig) == ["1", *kept[:2], "2", *kept[2:]]


@pytest.mark.parametrize("name", ["007", "٣", "-1", "4x", "0x4"])
def test_names_that_are_no_steps_are_left_alone(rig: Rig, name: str) -> None:
    """They are nobody's checkpoint, above a ceiling as below it."""
    _save(rig, 1)
    (rig.checkpoints / name).mkdir()
    with closing(rig.saver()) as saver:
        assert saver.restore(0).state is None
    assert name in _names(rig)


def test_claim_that_is_no_text_is_no_claim(rig: Rig) -> None:
    """Whatever has written it: the directory can be used."""
    rig.checkpoints.mkdir(parents=True)
    (rig.checkpoints / FILE).write_bytes(b"\xff\xfe\x00\xd8")
    _save(rig, 1)
    assert "1" in _names(rig)


def test_another_models_job_ends_nobodys_run(tmp_path: Path) -> None:
    """It is refused before it claims the directory: who trains there commits on."""
    rig = Rig(tmp_path)
    with closing(rig.saver()) as mine:
        mine.restore(None)
        rig.save(mine, 4, local=False)
        claim = (rig.checkpoints / FILE).read_bytes()
        other = Rig(tmp_path / "other", checkpoints=str(rig.checkpoints), model={"dModel": 64})
        with (
            closing(other.saver()) as theirs,
            pytest.raises(CheckpointUnusableError, match="sizes"),
        ):
            theirs.restore(None)
        assert (rig.checkpoints / FILE).read_bytes() == claim
        rig.save(mine, 9, local=False)
    assert _names(rig) == ["4", "9"]


def test_claims_of_other_jobs_are_still_told(rig: Rig) -> None:
    """A job that can continue the step takes the directory over, as before."""
    _save(rig, 4)
    Claims(epath.Path(rig.checkpoints), {Env.UID: "later", Env.JOB: "later"}).take()
    with closing(rig.saver()) as saver:
        assert saver.restore(None).step == 4
