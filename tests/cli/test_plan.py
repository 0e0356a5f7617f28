"""`kubectl tpujob plan` says what a job will take, and with what it was reckoned."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from tpujob_operator.cli import plantables
from tpujob_operator.cli.__main__ import main
from tpujob_operator.sim.estimate import Assumed, Capacity, Work, choices, estimate, simulated
from tpujob_operator.sim.scenario import Features

ROOT = Path(__file__).parents[2]
LLAMA = str(ROOT / "examples" / "llama3-8b.yaml")
FITS = map(json.loads, (ROOT / "docs" / "tpu-fit.jsonl").read_text().splitlines())
FIT = next(fit for fit in FITS if fit["case"][:3] == ["llama3-8b", "v5p", "4x4x4"])


def _told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["plan", *arguments, "-o", "json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    """Llama 3 8B on 256 chips of v5p: 6 N FLOPs a token and some for attention."""
    told = _told(capsys, LLAMA)
    own = told["estimate"]
    assert (own["chips"], own["provisioning"], own["mfu"]) == (256, "Reserved", 0.5)
    tokens = 256 * 4096
    least_s = 6 * 7.5e9 * tokens / (256 * 459e12 * 0.5)
    assert least_s < own["stepSeconds"] < 1.2 * least_s
    assert own["days"] == pytest.approx(own["stepSeconds"] * 100_000 / 86_400 / own["goodput"])
    assert own["usd"] == pytest.approx(own["days"] * 24 * 256 * 4.2 * 0.6)
    per_million = own["usdPerMillionTokens"] * tokens * 100_000 / 1e6
    assert per_million == pytest.approx(own["usd"])
    assert [row["spares"] for row in told["spares"]] == [0, 1, 2]
    assert len(told["alternatives"]) == 4 * 6 - 2
    assert own in told["alternatives"]
    assert told["check"] is None
    assert any("list prices" in line for line in told["assumptions"])


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.stem)
def test_all_examples_can_be_planned(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A demo that would last for milliseconds on real chips, too."""
    assert main(["plan", str(path)]) == 0
    assert "simulated: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("days", "shown"),
    [(1.5, "1.50 days"), (0.5, "12.00 h"), (0.01, "14.40 min"), (1e-6, "0.09 s"), (None, "?")],
)
def test_times_have_units_that_suit(days: float | None, shown: str) -> None:
    """0.00 days is no answer."""
    assert plantables._span(days) == shown


def test_recreated_pods_take_their_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With recovery.pods Recreate every fault costs new pods, and the assumption is told."""
    path = ROOT / "examples" / "recreated-program.yaml"
    job = yaml.safe_load(path.read_text())
    assert job["spec"]["recovery"]["pods"] == "Recreate"
    recreated = _told(capsys, str(path))
    assert any(line.startswith("recreate 611 s") for line in recreated["assumptions"])
    job["spec"]["recovery"] = {}
    job["spec"]["template"]["spec"]["containers"][0]["command"] = ["python", "train.py"]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    in_place = _told(capsys, str(tmp_path / "job.yaml"))
    assert any(line.startswith("replace 96 s") for line in in_place["assumptions"])
    assert recreated["estimate"]["goodput"] < in_place["estimate"]["goodput"]


def test_what_is_given_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Measured steps, own prices, rates: each is used, and told."""
    prices = tmp_path / "prices.json"
    prices.write_text('{"v5p": {"OnDemand": 10, "Reserved": 1}}')
    given = ["--step-seconds", "2", "--steps", "1000", "--prices", str(prices)]
    told = _told(capsys, LLAMA, *given, "--faults-per-chip-day", "0.01", "--save-seconds", "3")
    own = told["estimate"]
    assert own["stepSeconds"] == 2
    assert own["usdPerDay"] == 24 * 256
    assert own["days"] == pytest.approx(2000 / 86_400 / own["goodput"])
    assert "Faults per chip and day: 0.01." in told["assumptions"]
    assert any("your prices" in line for line in told["assumptions"])


def test_a_program_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is known of it but what is given."""
    path = str(ROOT / "examples" / "own-program.yaml")
    assert _told(capsys, path)["estimate"]["days"] is None
    own = _told(capsys, path, "--steps", "1000", "--step-seconds", "1")["estimate"]
    assert own["provisioning"] == "Spot"
    assert own["days"] is not None


def test_text_has_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """The same for people."""
    assert main(["plan", LLAMA, "--mfu", "0.4"]) == 0
    shown = capsys.readouterr().out
    for words in ("MFU 40.0%", "not checked", "Spare slices", "FlexStart", "not offered", "7 days"):
        assert words in shown


def _shown(check: dict[str, Any]) -> str:
    capacity, assumed = Capacity("v5p", "4x4x4", 1), Assumed()
    own = estimate(capacity, Work(100, 1000, 1e15), assumed)
    days, run = simulated(own, assumed, Features(), 1)
    sink = io.StringIO()
    plantables.show(
        Console(file=sink, width=160),
        own=own,
        check=check,
        simulation=run,
        simulated_days=days,
        spares=[own],
        alternatives=[estimate(other, Work(), assumed) for other in choices(capacity)],
        assumptions=[],
    )
    return sink.getvalue()


def test_what_the_compiler_says_is_told() -> None:
    """As in an answer of tpujob-trainer check."""
    assert "fits: 13.64 of 95.74 GiB; a step takes at least 1.18 s, MFU 78.1%" in _shown(FIT)
    near = FIT | {"fits": False, "upperBound": None, "nearestFit": {"change": "remat=full"}}
    assert "DOES NOT FIT: 13.64 of 95.74 GiB" in _shown(near)
    assert "the nearest that fits: remat=full" in _shown(near)
    assert "take a larger slice" in _shown(near | {"nearestFit": None})


def test_missing_compiler_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rest of the plan is there all the same."""
    monkeypatch.setenv("TPU_LIBRARY_PATH", "/nowhere/libtpu.so")
    assert main(["plan", LLAMA, "--check"]) == 0
    assert "fits: not known: tpujob-trainer check ended" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": {"preset": "lama"}}, "spec.trainer.config: model.preset"),
        ({"mesh": {"tensor": -2}}, "spec.trainer.config: mesh"),
    ],
)
def test_bad_configurations_are_told(
    change: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the trainer's own words, before anything runs."""
    raw = yaml.safe_load(Path(LLAMA).read_text())
    raw["spec"]["trainer"]["config"] |= change
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(raw))
    assert main(["plan", str(path)]) == 1
    assert words in capsys.readouterr().err


def test_bad_prices_and_several_jobs_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what is wanted instead."""
    prices = tmp_path / "prices.json"
    prices.write_text('{"v5p": 3}')
    assert main(["plan", LLAMA, "--prices", str(prices)]) == 1
    assert 'such as {"v5e": {"OnDemand": 1.1}}' in capsys.readouterr().err
    path = tmp_path / "jobs.yaml"
    path.write_text("---\n".join([Path(LLAMA).read_text()] * 2))
    assert main(["plan", str(path)]) == 1
    assert "has 2 jobs: give one at a time" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["--mfu", "45"], ["--steps", "0"], ["--step-seconds", "-1"]])
def test_bad_numbers_are_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """By their range."""
    with pytest.raises(SystemExit):
        main(["plan", LLAMA, *given])
    assert "is not above 0" in capsys.readouterr().err
