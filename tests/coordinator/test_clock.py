"""The coordinator's clock while the machine's is being set."""

from __future__ import annotations

import pytest

from tpujob_coordinator.shell import Clock

HOUR_MS = 3_600_000


class Machine:
    """Both clocks of a machine."""

    def __init__(self) -> None:
        self.wall_ms, self.monotonic_ms = 1_700_000_000_000, 5_000

    def wait(self, ms: int) -> None:
        """Time passes."""
        self.wall_ms += ms
        self.monotonic_ms += ms

    def clock(self) -> Clock:
        """A coordinator's clock on it."""
        return Clock(lambda: self.wall_ms * 1_000_000, lambda: self.monotonic_ms * 1_000_000)


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, -900, 900, HOUR_MS])
def test_deadlines_run_evenly_while_the_clock_is_set(jump_ms: int) -> None:
    """A member falls silent after its timeout, and the fence holds, whatever NTP does."""
    machine = Machine()
    clock = machine.clock()
    before_ms = clock.now_ms()
    assert before_ms == machine.wall_ms
    machine.wall_ms += jump_ms
    for seconds in range(1, 181):
        machine.wait(1_000)
        passed_ms = clock.now_ms() - before_ms
        assert abs(passed_ms - 1_000 * seconds) <= 5 * seconds


@pytest.mark.parametrize("jump_ms", [-900, 900])
def test_a_wrong_time_is_made_good(jump_ms: int) -> None:
    """The timeline's times are those of the world's clock again within minutes."""
    machine = Machine()
    clock = machine.clock()
    machine.wall_ms += jump_ms
    for _ in range(200):
        machine.wait(1_000)
        clock.now_ms()
    assert clock.now_ms() == machine.wall_ms


def test_the_time_never_goes_back() -> None:
    """However often it is asked for."""
    machine = Machine()
    clock = machine.clock()
    seen = []
    for number in range(1_000):
        machine.wall_ms += (-1) ** number * 7 * number
        machine.wait(number % 2)
        seen.append(clock.now_ms())
    assert seen == sorted(seen)
