"""What the benchmark of recovery makes of the lines that leaders print."""

from __future__ import annotations

import pytest

from bench.recovery import measure, table
from bench.recovery.lines import Line, parse
from bench.recovery.measure import Recovery

_STAMP = "2026-11-21T15:00:00.123456789Z"


def _world(first: int, last: int, at: float) -> list[Line]:
    """A world that finishes a step every second."""
    steps = [Line(at + step - first, step) for step in range(first, last + 1)]
    return [Line(at, first, is_begin=True), *steps]


def test_steps_are_read_from_the_kubelets_lines() -> None:
    """A step, a world's first step, and what is neither."""
    step = parse(f'{_STAMP} stdout F {{"step": 7, "loss": 5.5}}')
    begin = parse(f"{_STAMP} stdout F first step 21 done: init 0.31 s")
    assert step is not None
    assert begin is not None
    assert (step.step, step.is_begin, begin.step, begin.is_begin) == (7, False, 21, True)
    assert step.at == begin.at == pytest.approx(1795273200.123456, abs=1e-6)
    for line in ("", f"{_STAMP} stderr F words", f'{_STAMP} stdout P {{"step": 7, "lo'):
        assert parse(line) is None


def test_first_step_new_step_and_lost_steps() -> None:
    """Steps 21 to 28 are done again: a new one is finished when step 29 is."""
    lines = [*_world(1, 28, 100.0), *_world(21, 40, 135.0)]
    assert measure.times(lines, 128.0) == (7.0, 15.0, 8)


def test_steps_of_the_grace_period_count_as_lost() -> None:
    """What the old world trains after the fault is done again too."""
    lines = [*_world(1, 38, 100.0), *_world(21, 50, 145.0)]
    assert measure.times(lines, 128.0)[2] == 18


def test_no_world_and_no_new_step() -> None:
    """Never is said as such, and a world that does not get as far has no new step."""
    assert measure.times(_world(1, 28, 100.0), 128.0) == (None, None, None)
    lines = [*_world(1, 28, 100.0), *_world(21, 25, 135.0)]
    assert measure.times(lines, 128.0) == (7.0, None, 8)


def test_nothing_is_lost_after_a_save() -> None:
    """A world that saved before it left goes on with a new step."""
    lines = [*_world(1, 30, 100.0), *_world(31, 40, 135.0)]
    assert measure.times(lines, 128.0) == (7.0, 7.0, 0)


@pytest.mark.parametrize(
    ("last", "expected"),
    [(7, False), (19, False), (27, False), (28, True), (34, True), (35, False), (48, True)],
)
def test_a_fault_waits_for_the_middle_of_an_interval(last: int, expected: bool) -> None:
    """The present world has saved, and half an interval has gone by since."""
    assert measure.is_ripe(_world(1, last, 0.0), 20) is expected


def test_a_world_that_has_just_resumed_is_not_ripe() -> None:
    """The step number alone would be right, but nothing has been saved yet."""
    lines = [*_world(1, 28, 0.0), *_world(21, 29, 50.0)]
    assert not measure.is_ripe(lines, 20)
    assert measure.is_ripe([*lines, *_world(21, 49, 100.0)[1:]], 20)


def test_quantiles_are_measured_values() -> None:
    """Nearest rank: p95 of few values is the largest."""
    assert measure.quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert measure.quantile([3.0, 1.0, 2.0], 0.95) == 3.0
    assert measure.quantile([4.0, 1.0, 2.0, 3.0], 0.5) == 2.0


def test_the_table_says_never_and_points_to_equal_rows() -> None:
    """Peers whose trainer is the container's main process are not killed twice."""
    found = [
        Recovery("ours", "kill", 1.5, 2.5, 3, 150.0, 3.0, noticed_s=0.1),
        Recovery("jobset", "kill", 70.0, 78.0, 9, 150.0, 4.0),
        Recovery("jobset", "block", None, None, None, 150.0, 4.0),
    ]
    rows = table.rows(found)
    known = ["0.1, 0.1, n 1", "1.5, 1.5, n 1"]
    assert rows[1][:4] == ["SIGKILL of one trainer", "this operator", *known]
    assert any("as SIGKILL of one trainer" in row for row in rows)
    assert any("never (watched 150 s), n 1" in row for row in rows)
    assert table.markdown(found).count("\n") == len(rows)
