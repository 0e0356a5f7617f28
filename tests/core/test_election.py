"""A Lease as a candidate sees it: free, held, expired, released, gone."""

from __future__ import annotations

from typing import Any

from tpujob_operator.core.election import LeaseTiming, Sighting, held, manifest, released

_TIMING = LeaseTiming(duration_s=10, renew_deadline_s=7, retry_s=2)


def _lease(holder: str, version: str) -> dict[str, Any]:
    lease = held(manifest("ns", "operator"), holder, _TIMING, 1_000)
    lease["metadata"]["resourceVersion"] = version
    return lease


def test_lease_that_was_never_seen_is_free() -> None:
    """The first candidate makes the Lease at once."""
    assert Sighting().then(None, 5.0).remaining_s(5.0) == 0


def test_lease_expires_by_the_time_that_it_was_seen_unchanged() -> None:
    """The times that stand in the Lease decide nothing: each change starts the count again."""
    seen = Sighting().then(_lease("other", "1"), 100.0)
    assert seen.remaining_s(100.0) == 10
    seen = seen.then(_lease("other", "1"), 109.0)
    assert seen.remaining_s(109.0) == 1
    seen = seen.then(_lease("other", "2"), 109.5)
    assert seen.remaining_s(110.0) == 9.5
    assert seen.remaining_s(119.5) == 0


def test_deleted_lease_still_has_to_expire() -> None:
    """Somebody deletes the Lease of a leader that acts: another one may not act beside it."""
    seen = Sighting().then(_lease("other", "1"), 100.0).then(None, 101.0)
    assert seen.remaining_s(101.0) == 9
    assert seen.remaining_s(110.0) == 0


def test_released_lease_is_free_at_once() -> None:
    """A leader that ends in order makes nobody wait."""
    lease = released(_lease("other", "1"), 2_000)
    lease["metadata"]["resourceVersion"] = "2"
    assert Sighting().then(lease, 100.0).remaining_s(100.0) == 0
    assert lease["spec"]["leaseDurationSeconds"] > 0  # the API refuses zero


def test_renewal_keeps_the_time_of_acquisition() -> None:
    """A renewal changes the time of renewal alone; another holder is a transition."""
    first = held(manifest("ns", "operator"), "a", _TIMING, 1_000)
    again = held(first, "a", _TIMING, 3_000)
    assert again["spec"] == {**first["spec"], "renewTime": "1970-01-01T00:00:03.000000Z"}
    other = held(again, "b", _TIMING, 9_000)
    assert other["spec"]["leaseTransitions"] == first["spec"]["leaseTransitions"] + 1
    assert other["spec"]["acquireTime"] == "1970-01-01T00:00:09.000000Z"


def test_lease_without_a_spec_is_free() -> None:
    """Whoever made it, nobody holds it."""
    lease = {"metadata": {"resourceVersion": "7"}}
    assert Sighting().then(lease, 1.0).remaining_s(1.0) == 0
    assert held(lease, "a", _TIMING, 0)["spec"]["holderIdentity"] == "a"
