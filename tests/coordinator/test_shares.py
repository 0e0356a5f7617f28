"""Shares of the time that go to input and saves."""

from __future__ import annotations

import pytest

from tpujob_agent.protocol import Finding
from tpujob_coordinator.messages import share_message
from tpujob_coordinator.shares import LEAST_MS, RECOMPILES_MS, Recompiles, Shares


def seen(shares: Shares, first_s: int, seconds: int, *, waited_ms: int, blocked_ms: int) -> None:
    """A PROGRESS event a second, with these shares of each."""
    for second in range(first_s, first_s + seconds):
        at_ms = 1_000_000 + 1000 * second
        shares.see({"endedAtMs": at_ms, "inputWaitMs": waited_ms, "saveBlockedMs": blocked_ms})


@pytest.mark.parametrize(
    ("waited_ms", "blocked_ms", "raised"),
    [
        (0, 0, {}),
        (90, 40, {}),
        (150, 0, {Finding.INPUT_BOUND: 0.15}),
        (0, 60, {Finding.SAVE_BOUND: 0.06}),
        (200, 200, {Finding.INPUT_BOUND: 0.2, Finding.SAVE_BOUND: 0.2}),
    ],
)
def test_too_large_shares_are_told(
    waited_ms: int, blocked_ms: int, raised: dict[Finding, float]
) -> None:
    """Above 10 % for input, 5 % for saves, each with advice."""
    shares = Shares()
    seen(shares, 1, 120, waited_ms=waited_ms, blocked_ms=blocked_ms)
    assert shares.raised == pytest.approx(raised)
    for finding, share in raised.items():
        assert share_message(finding, share).startswith(f"{share:.0%} of the time is ")


def test_a_minute_is_needed_and_it_ends_when_all_is_well() -> None:
    """The last five minutes count."""
    shares = Shares()
    seen(shares, 1, LEAST_MS // 1000, waited_ms=500, blocked_ms=0)
    assert not shares.raised
    seen(shares, 61, 300, waited_ms=500, blocked_ms=0)
    assert shares.raised == {Finding.INPUT_BOUND: pytest.approx(0.5)}
    seen(shares, 361, 260, waited_ms=0, blocked_ms=0)
    assert shares.raised
    seen(shares, 621, 30, waited_ms=0, blocked_ms=0)
    assert not shares.raised


def test_recompiling_is_told_when_it_does_not_end() -> None:
    """Three within ten minutes, whichever host tells of them; the same ones count once."""
    recompiles = Recompiles()
    recompiles.see(2, 1_000)
    recompiles.see(2, 2_000)
    assert not recompiles.are_many(2_000)
    recompiles.see(3, 3_000)
    assert recompiles.are_many(3_000)
    assert not recompiles.are_many(1_000 + RECOMPILES_MS)
    recompiles.see(9, 2 * RECOMPILES_MS)
    assert recompiles.are_many(2 * RECOMPILES_MS)
