"""The catalogue without a cluster: what it holds, what it says, and the program that obeys."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from faults import __main__ as command
from faults import diary, training
from faults.catalogue import CATALOGUE
from faults.diary import Line
from faults.scene import LEADER, OutOfReachError, Scene
from faults.training import TRAINING, course

_DOCS = Path(__file__).parents[2] / "docs" / "faults.md"


def test_every_fault_is_described() -> None:
    """The page for users names them all."""
    text = _DOCS.read_text()
    assert [name for name in CATALOGUE if f"`{name}`" not in text] == []


def test_faults_below_kubernetes_are_marked() -> None:
    """The star in the page is the catalogue's own mark."""
    text = _DOCS.read_text()
    starred = {name for name in CATALOGUE if f"`{name}`*" in text}
    assert starred == {name for name, fault in CATALOGUE.items() if fault.is_below}


def test_a_fault_out_of_reach_says_what_would_help() -> None:
    """Without machines of ours there is no node to cut off."""
    scene = Scene(None, "j")  # type: ignore[arg-type] # nobody is asked
    with pytest.raises(OutOfReachError, match="CLUSTER=local"):
        _ = scene.cluster


def test_what_cannot_be_undone_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The job recovers from most faults by itself."""
    scene = Scene(None, "j")  # type: ignore[arg-type] # nobody is asked
    assert command._act("kill-trainer", scene, LEADER, heal=True) == 1
    assert "the job recovers by itself" in capsys.readouterr().err


def test_an_unknown_fault_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Argparse lists the names there are."""
    with pytest.raises(SystemExit):
        command.main(["kill-everything", "--job", "j"])
    assert "kill-trainer" in capsys.readouterr().err


def _train(folder: Path, steps: int, *orders: str) -> subprocess.CompletedProcess[str]:
    """Run the program as a pod would, without an agent."""
    order = folder / "order"
    if orders:
        order.write_text(orders[0])
    env = {
        "FOLDER": str(folder / "shared"),
        "STEPS": str(steps),
        "TPUJOB_ATTEMPT": "1",
        "TPUJOB_GENERATION": "1",
        "JAX_PROCESS_ID": "0",
        "PYTHONPATH": str(Path(training.__file__).parents[1] / "trainer"),
    }
    text = TRAINING.replace(training.ORDER, str(order))
    command = [sys.executable, "-c", text]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_the_program_saves_and_resumes(tmp_path: Path) -> None:
    """Every tenth step is saved, and the next start goes on there."""
    assert _train(tmp_path, 15).returncode == 0
    assert _train(tmp_path, 25).returncode == 0
    lines = diary.read((tmp_path / "shared" / "diary").read_text())
    assert lines == [
        Line(1, "began", 0), Line(1, "saving", 10), Line(1, "saved", 10),
        Line(1, "began", 10), Line(1, "saving", 20), Line(1, "saved", 20),
    ]  # fmt: skip
    assert diary.why_wrong(lines) == ""


def test_the_program_exits_as_ordered(tmp_path: Path) -> None:
    """An order is taken once, before the next step."""
    assert _train(tmp_path, 5, "exit 3").returncode == 3
    assert _train(tmp_path, 5).returncode == 0


def test_a_save_that_was_not_written_down_is_found() -> None:
    """A program may be killed right after it has saved, or right before; nothing in between."""
    before = [Line(1, "saved", 10), Line(1, "saving", 20)]
    for step in (10, 20):
        starts = [Line(2, "began", step), Line(2, "began", step)]
        assert diary.why_wrong([*before, *starts]) == ""
    for steps in ((20, 10), (10, 20)):
        starts = [Line(2, "began", step) for step in steps]
        assert "its world began" in diary.why_wrong([*before, *starts])


def test_a_host_that_comes_late_may_find_newer_saves() -> None:
    """It reads one of them while its leader makes the next."""
    lines = [Line(1, "began", 0), Line(1, "saved", 10), Line(1, "saved", 20)]
    for step in (0, 10, 20):
        assert diary.why_wrong([*lines, Line(1, "began", step)]) == ""
    assert "has saved step 20" in diary.why_wrong([*lines, Line(1, "began", 30)])


@pytest.mark.parametrize(
    "lines",
    [
        [Line(1, "began", 0), Line(1, "saved", 10), Line(2, "began", 0)],
        [Line(1, "began", 0), Line(1, "saved", 10), Line(2, "began", 20)],
        [Line(1, "began", 0), Line(2, "began", 0), Line(1, "saved", 10)],
        [Line(2, "began", 0), Line(1, "began", 0, 2), Line(2, "saved", 10)],
    ],
    ids=["older", "never-saved", "two-worlds", "two-attempts"],
)
def test_wrong_resumes_are_found(lines: list[Line]) -> None:
    """A start from another step than the newest save, and a save beside a newer world."""
    assert diary.why_wrong(lines) != ""


def test_losses_tell_states_apart() -> None:
    """A run that starts anew from no state, or skips a step, has other losses from there on."""
    whole = course(50)
    assert len(set(whole.values())) == 50
    late = training.loss_of(training.advance(0, 11))
    assert late != whole[11]
