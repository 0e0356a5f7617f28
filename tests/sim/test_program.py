"""``python -m tpujob_operator.sim`` prints what was asked for."""

import dataclasses
import json
from pathlib import Path

import pytest

from tpujob_operator.sim.__main__ import main
from tpujob_operator.sim.outcome import assumptions, simulate
from tpujob_operator.sim.scenario import LADDER, SCENARIOS, SOURCES, Times

QUICK = ["year", "--chips", "1024", "--days", "2", "--faults-per-chip-day", "0.01"]


def test_table_has_a_row_for_each_feature_and_its_assumptions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is claimed without what it rests on."""
    assert main(QUICK) == 0
    printed = capsys.readouterr().out
    assert all(f"| {name} |" in printed for name in LADDER)
    assert "Simulated, not measured" in printed
    assert all(f"- {name} " in printed for name in SOURCES)


def test_json_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    """The same for programs."""
    assert main([*QUICK, "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in told["simulated"]] == list(LADDER)
    assert told["scenario"]["chips"] == 1024
    assert all(0 < row["work"] <= 1 for row in told["simulated"])


def test_page_tells_what_the_program_prints() -> None:
    """The last row of the first table in docs/simulator.md is made again, and its assumptions."""
    page = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
    scenario = SCENARIOS["llama3"]
    name, features = list(LADDER.items())[-1]
    made = simulate(name, dataclasses.replace(scenario, features=features), seed=1)
    told = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
    cells = [cell.strip() for cell in told.split("|")]
    assert (cells[2], cells[4]) == (f"{100 * made.work:.2f} %", f"{100 * made.goodput:.2f} %")
    assert all(line in page for line in assumptions(scenario).splitlines())


def test_every_time_has_a_source() -> None:
    """A number that was put in says where it comes from."""
    assert set(SOURCES) == set(Times.__dataclass_fields__)


def test_picture_is_drawn(tmp_path: Path) -> None:
    """The picture of the same table."""
    path = tmp_path / "ladder.png"
    assert main([*QUICK, "--picture", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "arguments", [["nowhere"], ["--chips", "0"], ["--days", "-1"], ["--weibull-shape", "nan"]]
)
def test_bad_arguments_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With the usage, and before anything is simulated."""
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
    assert "usage:" in capsys.readouterr().err
