"""What a soak draws, and what it says at its end."""

from __future__ import annotations

from typing import Any

import pytest

from bench.soak import __main__ as command
from bench.soak import draw, table
from bench.soak.draw import Hit
from bench.soak.runner import Outcome
from faults.answers import ANSWERS
from faults.catalogue import CATALOGUE
from faults.scene import Place
from tpujob_operator.core.history import History


def test_a_seed_repeats_its_faults() -> None:
    """The same seed, the same faults; all kinds and all hosts are drawn."""
    names = draw.choices(obeys=True)
    hits = draw.draw(7, 500, names, 2.0)
    assert hits == draw.draw(7, 500, names, 2.0)
    assert hits != draw.draw(8, 500, names, 2.0)
    assert {hit.fault for hit in hits} == {*names} == {*ANSWERS}
    assert {hit.place for hit in hits} == {Place(s, h) for s in (0, 1) for h in (0, 1)}
    assert all(0 <= hit.pause_s <= 2 for hit in hits)


def test_a_program_that_takes_no_orders_is_given_none(capsys: pytest.CaptureFixture[str]) -> None:
    """The bundled trainer cannot be told to exit or to hang."""
    names = draw.choices(obeys=False)
    assert names
    assert not any(CATALOGUE[name].is_obeyed for name in names)
    with pytest.raises(SystemExit):
        command.main(["--trainer", "bundled", "--only", "block-trainer"])
    assert "takes no orders: not block-trainer" in capsys.readouterr().err


def _outcome(fault: str, recovered_s: float = 1.0, lost: int = 0, *wrong: str) -> Outcome:
    incident: dict[str, Any] = {
        "cause": "process",
        "rung": "R0",
        "detectedAfterSeconds": 0.1,
        "recoveredAfterSeconds": recovered_s,
        "lostSteps": lost,
        "lostSeconds": recovered_s + 0.5 * lost,
    }
    return Outcome(Hit(fault, Place(1, 0), 0.0), incident if ANSWERS[fault] else {}, wrong)


def test_what_is_told_of_a_fault() -> None:
    """A line with cause, rung and times; or that nothing has stopped."""
    assert table.line(_outcome("kill-trainer", 1.26, 3)) == (
        "kill-trainer at slice 1 host 0: process R0, detected 0.1 s, recovered 1.3 s, 3 steps lost"
    )
    assert table.line(_outcome("kill-operator")) == "kill-operator: training goes on"


def test_the_table_counts_by_fault() -> None:
    """Times are measured values; a wrong answer is not among the right ones."""
    found = [_outcome("kill-trainer", 1.0, 2), _outcome("kill-trainer", 3.0, 5, "oh")]
    _, _, kill, coordinator = table.markdown([*found, _outcome("kill-coordinator")]).splitlines()
    assert kill == "| kill-trainer | 2 | 1 | 1.0, 3.0 | 5 |"
    assert coordinator == "| kill-coordinator | 1 | 1 | no stop | 0 |"


def test_the_bars_are_told() -> None:
    """Steps lost by hosts that had to go, and what a killed process costs beside an interval."""
    found = [_outcome("kill-trainer", 1.0, 2), _outcome("kill-trainer", 1.0, 6, "oh")]
    found += [_outcome("delete-pod"), _outcome("delete-pod", 9.0, 1), _outcome("kill-operator")]
    assert [*table.verdicts(found, 2.0)] == [
        "wrong answers: 1 of 5",
        "wrong resumes: 0 of 5",
        "hosts told to go: saved before, no step lost: 1 of 2",
        "work lost by a process's end: p50 1.0, most 3.0 s",
        "of it at most one tier-1 interval (2 s): 1 of 2",
    ]
    assert len([*table.verdicts(found, 0.0)]) == 4


def _status(wall_s: float, good_s: float, **progress: int) -> dict[str, Any]:
    ledger = History.start(0).to_json()
    ledger["progress"] |= progress
    told = {"wallSeconds": wall_s, "seconds": {"productive": good_s - 1}, "unsettledSeconds": 1.0}
    return {"goodput": told, "ledger": ledger}


def test_goodput_beside_the_models_optimum() -> None:
    """What came before the first save does not count."""
    first, last = _status(60, 10), _status(1060, 960, save_blocked_ms=50, save_lag_ms=500)
    assert table.goodput(first, last) == pytest.approx(0.95)
    best = table.optimum(last, [_outcome("kill-trainer", 3.0)], 300)
    assert best is not None
    assert 0.96 < best < 0.98  # 3.5 s of 300 for the recovery, and √(2·0.05/300) for saving
    assert table.optimum(last, [], 300) is None
    assert table.optimum(_status(1060, 960), [_outcome("kill-trainer")], 300) is None
