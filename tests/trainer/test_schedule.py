"""Saves come when they should, at steps on which all processes agree."""

from __future__ import annotations

import time

import pytest

import tpujob
from tpujob_trainer.config import CheckpointConfig
from tpujob_trainer.distributed import World
from tpujob_trainer.schedule import SaveSchedule


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


def test_seconds_become_steps_by_the_measured_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 0.5 s a step, five seconds are ten steps, counted from where the pace is known."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    plan = SaveSchedule(CheckpointConfig("c", "seconds:5", 3), World(), start=100, last=1000)
    due = []
    for step in range(101, 140):
        now[0] += 0.5
        if plan.due(step).durable:
            due.append(step)
    assert due == [113, 123, 133]


def test_interval_shorter_than_a_step_saves_after_every_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The interval is never rounded to no step at all."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    plan = SaveSchedule(CheckpointConfig("c", "seconds:0.1", 3), World(), start=0, last=100)
    due = []
    for step in range(1, 8):
        now[0] += 2.0
        if plan.due(step).durable:
            due.append(step)
    assert due == [4, 5, 6, 7]


def test_coordinator_can_ask_for_a_save(monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that the coordinator asks for is made at its step, and the others stay."""
    monkeypatch.setattr(tpujob, "save_request", lambda: tpujob.SaveRequest(4))
    assert _due("steps:10", start=0, last=12) == [4, 10, 12]
