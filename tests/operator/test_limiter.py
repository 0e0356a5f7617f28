"""Requests are few enough for the server, and fewer while it is in trouble."""

from __future__ import annotations

import pytest

from tpujob_operator.shell.limiter import Limiter


def test_burst_and_then_an_even_pace() -> None:
    """A quiet client sends a burst at once; each further request waits for its token."""
    limiter = Limiter(per_s=10, burst=5)
    assert [limiter.reserve_s(0.0) for _ in range(5)] == [0.0] * 5
    waits = [limiter.reserve_s(0.0) for _ in range(3)]
    assert waits == pytest.approx([0.1, 0.2, 0.3])
    assert limiter.reserve_s(100.0) == 0


def test_server_that_asks_for_a_pause_gets_it() -> None:
    """Retry-After holds up all requests of the client, whichever was answered so."""
    limiter = Limiter(per_s=10, burst=5)
    limiter.answered(429, 7.0, sent_s=10.0, now_s=10.5)
    assert limiter.pause_s(10.5) == 7
    limiter.answered(200, 0, sent_s=10.0, now_s=11.0)  # was under way already
    assert limiter.pause_s(11.5) == 6
    assert limiter.pause_s(17.5) == 0


@pytest.mark.parametrize("code", [0, 503])
def test_pauses_grow_while_the_server_is_away(code: int) -> None:
    """One failure says little; of several in a row each makes a longer pause, up to a limit."""
    limiter, now_s, pauses = Limiter(per_s=10, burst=5), 0.0, []
    for _ in range(12):
        limiter.answered(code, 0, sent_s=now_s, now_s=now_s)
        pauses.append(limiter.pause_s(now_s))
        now_s += pauses[-1]
    assert pauses[0] == 0
    assert 0.4 <= pauses[1] <= 0.6
    assert pauses[3] > pauses[1]
    assert all(8 <= pause <= 12 for pause in pauses[-4:])
    limiter.answered(200, 0, sent_s=now_s, now_s=now_s)
    limiter.answered(code, 0, sent_s=now_s, now_s=now_s)
    assert limiter.pause_s(now_s) == 0


def test_failures_of_before_the_pause_count_once() -> None:
    """Sixteen workers that fail together are one outage."""
    limiter = Limiter(per_s=10, burst=5)
    for _ in range(16):
        limiter.answered(0, 0, sent_s=0.0, now_s=1.0)
    assert limiter.pause_s(1.0) <= 1.2


@pytest.mark.parametrize("code", [400, 403, 404, 409, 422, 500])
def test_faults_of_one_request_hold_up_no_other(code: int) -> None:
    """A refused object, or one whose webhook fails, is no reason to spare the server."""
    limiter = Limiter(per_s=10, burst=5)
    for _ in range(5):
        limiter.answered(code, 0, sent_s=1.0, now_s=1.0)
    assert limiter.pause_s(1.0) == 0
