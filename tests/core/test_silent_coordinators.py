"""Coordinators that run and cannot be read: the job says so, with advice."""

import pytest

from tests.core.stories import training


def test_silent_coordinator_is_told_after_a_while() -> None:
    """A coordinator that runs but cannot be read makes the job Degraded, with advice."""
    world = training()
    world.silent_since_ms = world.now_ms
    plan = world.settle()
    assert plan.requeue_after_s == pytest.approx(60)
    world.now_ms += 60_000
    world.settle()
    assert world.condition("Degraded") == ("True", "CoordinatorUnreachable")
    world.silent_since_ms = 0
    world.settle()
    assert world.condition("Degraded")[0] == "False"


def test_coordinator_that_refuses_is_told_after_a_while() -> None:
    """It answers, but not this operator: the advice is about clocks and the job's Secret."""
    world = training()
    world.silent_since_ms, world.is_unauthorized = world.now_ms, True
    world.settle()
    assert world.condition("Degraded")[0] == "False"
    world.now_ms += 60_000
    world.settle()
    assert world.condition("Degraded") == ("True", "CoordinatorRefuses")
    message = world.message("Degraded")
    assert "clocks" in message
    assert "delete the Secret" in message
    assert "JobSet j-1." in message
    world.silent_since_ms, world.is_unauthorized = 0, False
    world.settle()
    assert world.condition("Degraded")[0] == "False"
