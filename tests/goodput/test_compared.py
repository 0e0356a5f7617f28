"""The ledger beside Google's ml-goodput-measurement 0.2.3, fed the same runs.

Where both can see the same they agree; docs/goodput.md has the arithmetic of the others.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.goodput.runs import Run, goodput_percent
from tpujob_operator.core.timetypes import TimeType

#: Points between two goodputs that count as equal.
EQUAL = 0.1


def _jittered(number: int, seed: int) -> list[int]:
    generator = random.Random(seed)
    return [round(1_000 * generator.uniform(0.95, 1.05)) for _ in range(number)]


def _plain(seed: int) -> Run:
    run = Run()
    run.world()
    run.steps(_jittered(600, seed))
    run.finish()
    return run


def _saving(seed: int) -> Run:
    run = Run()
    run.world()
    run.steps(_jittered(600, seed), save_every=50, blocked_ms=400)
    run.finish()
    return run


def _crashing(seed: int) -> Run:
    generator = random.Random(seed)
    run = Run()
    run.world()
    for _ in range(4):
        run.steps(_jittered(generator.randint(120, 300), seed), save_every=50, blocked_ms=200)
        run.crash(into_step=generator.randint(1, 900), detection=1_500, down=12_000)
        run.world()
    run.steps(_jittered(200, seed), save_every=50, blocked_ms=200)
    run.finish()
    return run


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", [_plain, _saving, _crashing])
def test_equal_where_both_can_see(make: object, seed: int, tmp_path: Path) -> None:
    """Plain runs, saves that hold up the loop, and crashes: within a tenth of a point."""
    assert callable(make)
    run: Run = make(seed)
    theirs, badput = run.theirs(tmp_path)
    assert goodput_percent(run.ours()) == pytest.approx(theirs, abs=EQUAL)
    assert theirs + sum(badput.values()) == pytest.approx(100, abs=EQUAL)


def test_kinds_are_equal_after_crashes(tmp_path: Path) -> None:
    """Kind by kind: initialisation, preparation, start of the program, saves; and what was lost."""
    run = _crashing(0)
    _, badput = run.theirs(tmp_path)
    view = run.ours()

    def percent(*kinds: TimeType) -> float:
        return 100 * sum(view.by_type_ms.get(kind, 0) for kind in kinds) / view.wall_ms

    assert badput["TPU_INITIALIZATION"] == pytest.approx(percent(TimeType.RUNTIME_INIT), abs=EQUAL)
    assert badput["TRAINING_PREP"] == pytest.approx(percent(TimeType.RESTORE), abs=EQUAL)
    assert badput["PROGRAM_STARTUP"] == pytest.approx(percent(TimeType.COMPILE), abs=EQUAL)
    # The step that the fault hit is lost progress to us and infrastructure to the library.
    lost = badput["WASTED_PROGRESS_FROM_DISRUPTION"]
    lost += badput["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"]
    ours = percent(TimeType.ROLLBACK, TimeType.DETECTION, TimeType.TEARDOWN, TimeType.PROVISIONING)
    assert lost == pytest.approx(ours, abs=EQUAL)


def _preempted() -> Run:
    run = Run()
    run.world()
    run.steps([1_000] * 300)
    run.leave(blocked_ms=500, down=60_000)
    run.world()
    run.steps([1_000] * 300)
    run.finish()
    return run


def test_leaving_in_order_is_no_disruption_to_the_library(tmp_path: Path) -> None:
    """No step is seen twice, so the minute without hosts counts as one long step.

    600 s of steps in 690.5 s are 86.9 %. The library finds 97.8 %, and more than 100 % with
    its own badput, which is how one sees that a time was counted twice.
    """
    run = _preempted()
    theirs, badput = run.theirs(tmp_path)
    assert goodput_percent(run.ours()) == pytest.approx(100 * 600 / 690.5, abs=1e-9)
    assert theirs == pytest.approx(97.85, abs=0.01)
    assert theirs + sum(badput.values()) == pytest.approx(101.45, abs=0.01)


def test_restore_is_charged_twice_by_the_library(tmp_path: Path) -> None:
    """As a restore, and as part of the preparation in which it happened; goodput is equal."""
    run = Run()
    run.world(restore=20_000, tells_restore=True)
    run.steps([1_000] * 300)
    run.finish()
    theirs, badput = run.theirs(tmp_path)
    assert goodput_percent(run.ours()) == pytest.approx(theirs, abs=EQUAL)
    assert run.ours().by_type_ms[TimeType.RESTORE] == 20_000
    twice = 100 * 20_000 / run.ours().wall_ms
    assert badput["TRAINING_PREP"] == pytest.approx(twice, abs=EQUAL)
    assert badput["UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"] == pytest.approx(twice, abs=EQUAL)


def test_steps_that_nothing_saved_are_lost_when_the_job_fails(tmp_path: Path) -> None:
    """To the library they stay productive, as no step was seen again."""
    run = Run()
    run.world()
    run.steps([1_000] * 250, save_every=100)
    run.fail()
    theirs, _ = run.theirs(tmp_path)
    assert goodput_percent(run.ours()) == pytest.approx(100 * 200 / 265)
    assert theirs == pytest.approx(100 * 250 / 265, abs=EQUAL)
