"""When a trainer counts as hung: phases, pace, pauses, stops; in simulated time."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpujob.record import Snapshot
from tpujob_agent.protocol import Phase
from tpujob_agent.watchdog import (
    PHASE_LIMIT_S,
    SAVE_LIMIT_S,
    STOPPED_LIMIT_S,
    UNPACED_LIMIT_S,
    HangLimits,
    Watchdog,
)

LIMITS = HangLimits(min_s=10.0, factor=5.0)


def stepping(seconds: list[float]) -> tuple[Watchdog, Snapshot, float]:
    """A watchdog that has seen one step after each of these times."""
    watchdog, now = Watchdog(LIMITS, 0.0), 0.0
    seen = Snapshot(phase=Phase.TRAIN, phase_at_ms=1, step=1)
    assert watchdog.check(seen, "R", now) == ""
    for step, duration in enumerate(seconds, 2):
        now += duration
        seen = Snapshot(phase=Phase.TRAIN, phase_at_ms=1, step=step)
        assert watchdog.check(seen, "R", now) == ""
    return watchdog, seen, now


def test_fast_steps_have_the_least_limit() -> None:
    """A job of 0.1 s steps is hung after the limit in seconds, not after five steps."""
    watchdog, seen, now = stepping([0.1] * 20)
    assert watchdog.check(seen, "S", now + 9.9) == ""
    assert (
        watchdog.check(seen, "S", now + 10.1) == "no step after step 21 for 10.1 s (limit 10.0 s)"
    )


def test_slow_steps_have_a_limit_of_their_own_pace() -> None:
    """A job of 20 s steps may take five of them."""
    watchdog, seen, now = stepping([20.0] * 5)
    assert watchdog.check(seen, "S", now + 99) == ""
    assert "limit 100.0 s" in watchdog.check(seen, "S", now + 101)


def test_a_pause_that_was_survived_may_come_again() -> None:
    """A blocking save of 8 s between fast steps allows 16 s the next time."""
    watchdog, seen, now = stepping([0.1] * 10 + [8.0] + [0.1] * 10)
    assert watchdog.check(seen, "S", now + 15.9) == ""
    assert "limit 16.0 s" in watchdog.check(seen, "S", now + 16.1)


@pytest.mark.parametrize(
    ("told", "limit_s"),
    [
        ({}, SAVE_LIMIT_S),
        ({"commit_lag_ms": 60_000}, SAVE_LIMIT_S),
        ({"commit_lag_ms": 600_000}, 6_000.0),
        ({"save_wait_limit_ms": 240_000, "commit_lag_ms": 600_000}, 240.0),
    ],
    ids=["nothing is known", "saves are fast", "saves are slow", "the program knows"],
)
def test_a_loop_that_waits_for_a_save_has_the_limit_of_saves(
    told: dict[str, int], limit_s: float
) -> None:
    """Not that of its steps, and the steps' limit counts from the wait's end again."""
    watchdog, seen, now = stepping([0.1] * 20)
    waiting = dataclasses.replace(seen, save_wait_since_ms=5, **told)  # type: ignore[arg-type] # integers only
    assert watchdog.check(waiting, "S", now + 1) == ""
    assert watchdog.check(waiting, "S", now + 1 + limit_s) == ""
    overdue = watchdog.check(waiting, "S", now + 2 + limit_s)
    assert (
        overdue == f"waits for a save for {limit_s + 1:.0f} s (limit {limit_s:.0f} s) after step 21"
    )
    watchdog.check(seen, "S", now + limit_s)
    assert watchdog.check(seen, "S", now + limit_s + 9.9) == ""
    assert "limit 10.0 s" in watchdog.check(seen, "S", now + limit_s + 10.1)


def test_until_the_pace_is_known_a_step_may_compile() -> None:
    """The first steps have a limit of minutes."""
    watchdog, seen, now = stepping([0.1])
    assert watchdog.check(seen, "S", now + UNPACED_LIMIT_S - 1) == ""
    assert watchdog.check(seen, "S", now + UNPACED_LIMIT_S + 1)


@pytest.mark.parametrize("phase", list(PHASE_LIMIT_S))
def test_each_phase_has_its_limit(phase: Phase) -> None:
    """Time counts from the phase's beginning, and the message names it."""
    watchdog = Watchdog(LIMITS, 0.0)
    seen = Snapshot(phase=phase, phase_at_ms=1)
    assert watchdog.check(seen, "S", 5.0) == ""
    assert watchdog.check(seen, "S", 5.0 + PHASE_LIMIT_S[phase]) == ""
    assert f"in phase {phase.value}" in watchdog.check(seen, "S", 6.0 + PHASE_LIMIT_S[phase])


def test_a_commit_is_progress() -> None:
    """While the last save writes terabytes, every commit starts the clock anew."""
    watchdog = Watchdog(LIMITS, 0.0)
    limit_s = PHASE_LIMIT_S[Phase.FINISHING]
    for number in range(4):
        seen = Snapshot(phase=Phase.FINISHING, phase_at_ms=1, committed_step=number)
        assert watchdog.check(seen, "S", number * 0.9 * limit_s) == ""


def test_a_program_that_tells_nothing_is_left_alone() -> None:
    """Nobody can say whether it makes progress."""
    watchdog = Watchdog(LIMITS, 0.0)
    assert watchdog.check(Snapshot(), "S", 1e9) == ""


def test_a_stopped_process_is_noticed_whatever_it_does() -> None:
    """State T for longer than a moment; a debugger's t, or a short stop, is none."""
    watchdog = Watchdog(LIMITS, 0.0)
    assert watchdog.check(Snapshot(), "T", 10.0) == ""
    assert watchdog.check(Snapshot(), "S", 12.0) == ""
    assert watchdog.check(Snapshot(), "T", 20.0) == ""
    assert watchdog.check(Snapshot(), "T", 20.0 + STOPPED_LIMIT_S) == ""
    assert "SIGSTOP" in watchdog.check(Snapshot(), "T", 20.1 + STOPPED_LIMIT_S)
    assert watchdog.check(Snapshot(), "t", 99.0) == ""


@pytest.mark.parametrize(
    ("cpu_ticks", "is_stopped"),
    [
        ([7] * 8, True),
        (list(range(8)), False),  # continued between any two looks
        ([7, 7, 7, 8, 8, 8, 9, 9], False),
        ([7, 8, 8, 8, 8, 8, 8, 8], False),  # 3 s from the second look on
        ([7, 8, 8, 8, 8, 8, 8, 8, 8], True),
    ],
)
def test_a_process_that_runs_in_between_is_not_stopped(
    cpu_ticks: list[int], *, is_stopped: bool
) -> None:
    """Stopped and continued in turns, it may be seen stopped at every look, twice a second."""
    watchdog = Watchdog(LIMITS, 0.0)
    told = [
        watchdog.check(Snapshot(), "T", 0.5 * look, ticks) for look, ticks in enumerate(cpu_ticks)
    ]
    assert bool(told[-1]) is is_stopped
    assert not any(told[:-1])


@given(st.lists(st.floats(0.001, 50.0), min_size=3, max_size=60), st.floats(1.01, 3.0))
def test_steps_within_the_pace_never_alarm(pace: list[float], slower: float) -> None:
    """However uneven the steps, one as slow as the slowest so far is no hang."""
    watchdog, seen, now = stepping([min(duration, 9.0) for duration in pace])
    longest = max(min(duration, 9.0) for duration in pace)
    assert watchdog.check(seen, "S", now + min(slower, 1.9) * longest) == ""
