"""Saves come when they should, at steps on which all processes agree."""

from __future__ import annotations

import itertools
import threading
import time
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tpujob
from tpujob_checkpoint.distributed import World
from tpujob_checkpoint.saving import slowest
from tpujob_checkpoint.schedule import PACE_STEPS, Due, SaveSchedule, Written
from tpujob_checkpoint.snapshots import KEEP
from tpujob_trainer.config import CheckpointConfig


def _due(interval: str, *, start: int, last: int) -> list[int]:
    config = CheckpointConfig("c", interval, 3)
    plan = SaveSchedule(config, World(), start=start, last=last)
    return [step for step in range(start + 1, last + 1) if plan.due(step).durable]


@pytest.mark.parametrize(
    ("start", "expected"), [(0, [10, 20, 25]), (10, [20, 25]), (13, [20, 25]), (24, [25])]
)
def test_steps_are_multiples_wherever_a_run_starts(start: int, expected: list[int]) -> None:
    """Saves at multiples of N, however often a run restarts, and at the end."""
    assert _due("steps:10", start=start, last=25) == expected


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock's time, which the test moves."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_seconds_become_steps_by_the_measured_pace(now_s: list[float]) -> None:
    """At 0.5 s a step, five seconds are ten steps, counted from where the pace is known."""
    plan = SaveSchedule(CheckpointConfig("c", "seconds:5", 3), World(), start=100, last=1000)
    due = []
    for step in range(101, 140):
        now_s[0] += 0.5
        if plan.due(step).durable:
            due.append(step)
    assert due == [113, 123, 133]


def test_interval_shorter_than_a_step_saves_after_every_step(
    now_s: list[float],
) -> None:
    """The interval is never rounded to no step at all."""
    plan = SaveSchedule(CheckpointConfig("c", "seconds:0.1", 3), World(), start=0, last=100)
    due = []
    for step in range(1, 8):
        now_s[0] += 2.0
        if plan.due(step).durable:
            due.append(step)
    assert due == [4, 5, 6, 7]


def test_coordinator_can_ask_for_a_save(monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that the coordinator asks for is made at its step, and the others stay."""
    monkeypatch.setattr(tpujob, "save_request", lambda: tpujob.SaveRequest(4))
    assert _due("steps:10", start=0, last=12) == [4, 10, 12]


def _at_pace(
    plan: SaveSchedule, now_s: list[float], *, steps: int, pace_s: float
) -> list[tuple[int, Due]]:
    plan._last_pulse = (0, 0.0)
    told = []
    for step in range(1, steps + 1):
        now_s[0] += pace_s
        told.append((step, plan.due(step)))
    return told


def test_snapshots_come_a_step_before_two_seconds_are_over(now_s: list[float]) -> None:
    """At 0.5 s a step, three steps lie between snapshots, whatever checkpoints do."""
    plan = SaveSchedule(CheckpointConfig("c", "steps:7", 3), World(), start=0, last=100)
    told = _at_pace(plan, now_s, steps=16, pace_s=0.5)
    assert [step for step, due in told if due.local] == [6, 9, 12, 15]
    assert [step for step, due in told if due.durable] == [7, 14]


def test_steps_that_become_faster_put_off_no_snapshot(now_s: list[float]) -> None:
    """A pulse that comes a little early is followed by one in time, not by one as far again."""
    plan = SaveSchedule(CheckpointConfig("c", "steps:1000", 3), World(), start=0, last=1000)
    plan._last_pulse = (0, 0.0)
    taken_s = []
    for step in range(1, 200):
        now_s[0] += 0.1 * 0.99**step
        if plan.due(step).local:
            taken_s.append(now_s[0])
    pauses = [later - earlier for earlier, later in itertools.pairwise(taken_s)]
    assert len(pauses) > 2
    assert pauses == pytest.approx([2.0] * len(pauses), abs=0.1)


def test_costly_snapshots_come_less_often(now_s: list[float]) -> None:
    """One that costs 0.3 s comes every 10 s, so that it costs 3 % at most."""
    plan = SaveSchedule(
        CheckpointConfig("c", "steps:1000", 3),
        World(),
        start=0,
        last=1000,
        last_snapshot=lambda: Written(cost_s=0.3),
    )
    told = _at_pace(plan, now_s, steps=50, pace_s=0.5)
    assert [step for step, due in told if due.local] == [23, 43]


@pytest.mark.parametrize(("took_s", "steps_apart"), [(0.0, 3), (0.5, 2), (1.0, 2), (1.5, 3)])
def test_snapshots_are_written_in_time(now_s: list[float], took_s: float, steps_apart: int) -> None:
    """A step before two seconds are over, the next one is written, if it can be."""
    plan = SaveSchedule(
        CheckpointConfig("c", "steps:1000", 3),
        World(),
        start=0,
        last=1000,
        last_snapshot=lambda: Written(took_s=took_s),
    )
    told = _at_pace(plan, now_s, steps=20, pace_s=0.5)
    taken = [step for step, due in told if due.local]
    assert {later - earlier for earlier, later in itertools.pairwise(taken)} == {steps_apart}


class _Writers:
    """Processes that write the same snapshots, each in its own time, and keep the newest."""

    def __init__(self, count: int) -> None:
        self.held: list[list[int]] = [[] for _ in range(count)]
        self._busy = [(0, 0.0, 0.0)] * count  # step, when it is written, what it took
        self._last = 0

    def take(self, step: int, now_s: float, took_s: list[float]) -> None:
        """Begin to write."""
        assert all(until <= now_s for _, until, _ in self._busy), "some still write the last one"
        self._last = step
        self._busy = [(step, now_s + cost_s, cost_s) for cost_s in took_s]

    def last(self, now_s: float) -> Written | None:
        """What the leader sees of them."""
        written = [Written(step, took, took) for step, until, took in self._busy if until <= now_s]
        return slowest(written, len(self._busy), self._last)

    def common(self, now_s: float) -> set[int]:
        """Steps that all hold."""
        for held, (step, until, _) in zip(self.held, self._busy, strict=True):
            if step and until <= now_s and step not in held:
                held.append(step)
                del held[:-KEEP]
        return set.intersection(*map(set, self.held))


@given(
    st.lists(st.lists(st.floats(0.001, 40), min_size=3, max_size=3), min_size=8, max_size=8),
    st.floats(0.05, 5),
)
def test_processes_that_write_slowly_always_share_a_snapshot(
    took_s: list[list[float]], pace_s: float
) -> None:
    """None is due before all have the last one: once they share one, they do so ever after."""
    now, writers, costs = [0.0], _Writers(3), iter(took_s)
    with mock.patch.object(time, "monotonic", side_effect=lambda: now[0]):
        plan = SaveSchedule(
            CheckpointConfig("c", "steps:100000", 3),
            World(),
            start=0,
            last=100_000,
            last_snapshot=lambda: writers.last(now[0]),
        )
        has_shared = False
        for step in range(1, 400):
            now[0] += pace_s
            common = writers.common(now[0])
            assert common or not has_shared
            has_shared = bool(common)
            if plan.due(step).local:
                writers.take(step, now[0], next(costs, [0.001] * 3))


def test_process_without_snapshots_ends_those_of_all(now_s: list[float]) -> None:
    """What one process lacks nobody can go on from, and checkpoints come as before."""
    written = [Written(), Written()]
    plan = SaveSchedule(
        CheckpointConfig("c", "steps:7", 3),
        World(),
        start=0,
        last=100,
        last_snapshot=lambda: slowest(written, 3, 0),
    )
    told = _at_pace(plan, now_s, steps=40, pace_s=0.5)
    assert [step for step, due in told if due.local] == []
    assert [step for step, due in told if due.durable] == [7, 14, 21, 28, 35]


@pytest.mark.parametrize("snapshot_s", [0.0, 2.0])
@pytest.mark.parametrize(
    ("asked", "expected"), [(5, Due(durable=True, leave=True)), (9, Due(durable=True))]
)
def test_leaving_is_a_save_and_the_end(snapshot_s: float, asked: int, expected: Due) -> None:
    """Asked to go, a process saves to tier 2 at that very step; at the last step it is done."""
    sigterm = threading.Event()
    config = CheckpointConfig("c", "steps:1000", 3, snapshot_s)
    plan = SaveSchedule(config, World(), start=0, last=9, wants_to_leave=sigterm.is_set)
    assert not any(plan.due(step).leave for step in range(1, asked))
    sigterm.set()
    assert plan.due(asked) == expected


def test_request_to_save_and_leave_is_obeyed_at_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator's step is kept; one that has passed is made up for at the next pulse."""
    for asked, expected in ((8, 8), (2, 3)):
        monkeypatch.setattr(tpujob, "save_request", lambda at=asked: tpujob.SaveRequest(at, True))
        plan = SaveSchedule(CheckpointConfig("c", "steps:1000", 3), World(), start=0, last=100)
        left = [step for step in range(1, 20) if plan.due(step).leave]
        assert left[0] == expected


@pytest.mark.parametrize(
    ("interval", "expected"), [("auto", [3, 13, 23]), ("seconds:10", [23]), ("steps:15", [15])]
)
def test_interval_is_the_coordinators_if_left_to_it(
    monkeypatch: pytest.MonkeyPatch, now_s: list[float], interval: str, expected: list[int]
) -> None:
    """With ``auto`` the interval that is told counts; one that a user gave stands."""
    monkeypatch.setattr(tpujob, "save_interval_s", lambda: 5.0)
    plan = SaveSchedule(CheckpointConfig("c", interval, 3), World(), start=0, last=100)
    due = _at_pace(plan, now_s, steps=29, pace_s=0.5)
    saved = [step for step, what in due if what.durable]
    assert saved == [step for step in expected if step > PACE_STEPS]


def test_interval_that_changes_is_followed_from_the_next_pulse(
    monkeypatch: pytest.MonkeyPatch,
    now_s: list[float],
) -> None:
    """Until it is told, ``auto`` is a minute; a told one takes effect at once."""
    intervals = {"s": None}
    monkeypatch.setattr(tpujob, "save_interval_s", lambda: intervals["s"])
    plan = SaveSchedule(CheckpointConfig("c", "auto", 3), World(), start=0, last=1000)
    saved = []
    for step in range(1, 60):
        now_s[0] += 1.0
        if step == 30:
            intervals["s"] = 10.0  # type: ignore[assignment] # as it is told
        if plan.due(step).durable:
            saved.append(step)
    assert saved == [30, 40, 50]
