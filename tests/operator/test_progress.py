"""The liveness probe asks for progress: it blames nobody for a slow API server."""

from __future__ import annotations

import pytest

from tpujob_operator.shell import client, limiter, progress
from tpujob_operator.shell.progress import Progress


class _Clock:
    now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """A clock that the test moves."""
    clock = _Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_old_queue_is_no_fault_while_passes_end(clock: _Clock) -> None:
    """Jobs that have waited for an hour are slow, not stuck, as long as passes end."""
    watched = Progress(lambda: 3_600.0)
    for _ in range(10):
        clock.now_s += 100
        with watched.work():
            pass
        assert watched.fault() == ""


def test_requests_of_a_long_pass_are_progress(clock: _Clock) -> None:
    """A pass of a thousand slow requests gets on; requests outside passes say nothing of it."""
    watched = Progress(lambda: 3_600.0)
    with watched.work():
        for _ in range(10):
            clock.now_s += 100
            watched.beat_if_working()
            assert watched.fault() == ""
    clock.now_s += 200
    watched.beat_if_working()
    assert "no worker has made progress" in watched.fault()


def test_idle_operator_is_healthy(clock: _Clock) -> None:
    """Nothing waits, so nothing has to end."""
    watched = Progress(lambda: 0.0)
    clock.now_s += 86_400
    assert watched.fault() == ""


def test_failing_pass_is_progress(clock: _Clock) -> None:
    """A defect that shows with every job does not restart the operator for ever."""
    watched = Progress(lambda: 3_600.0)
    clock.now_s += 1_000
    with pytest.raises(ZeroDivisionError), watched.work():
        _ = 1 / 0
    assert watched.fault() == ""


def test_no_request_takes_so_long_that_it_looks_stuck() -> None:
    """A pause that the server asks for, then a listing until its timeout: still progress."""
    pause_s = max(client._LONGEST_RETRY_AFTER_S, limiter._LONGEST_PAUSE_S)
    assert pause_s + client.LIST_TIMEOUT_S < progress._STUCK_S
