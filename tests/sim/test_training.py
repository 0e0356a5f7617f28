"""Steps and saves of a simulated world are exact."""

from hypothesis import given
from hypothesis import strategies as st

from tpujob_operator.sim.training import Training


def _training(**changes: int) -> Training:
    values = {"step_ms": 100, "blocked_ms": 30, "lag_ms": 250} | changes
    return Training(first_step=11, ended_ms=1_000, **values)


def test_saves_hold_up_and_become_durable_later() -> None:
    """Ten steps of 100 ms, a save of 30 ms, durable after 250 ms."""
    training = _training()
    assert training.next_save_ms(1_030) == 2_000
    assert training.reached(2_000) == (21, 2_000)
    assert training.save(2_000).durable_at_ms == 2_250
    assert training.reached(2_029) == (21, 2_000)
    assert training.reached(2_130) == (22, 2_130)
    training.commit(2_249)
    too_early = training.committed
    training.commit(2_250)
    assert too_early is None
    assert training.committed is not None
    assert (training.committed.step, training.committed.lag_ms) == (21, 250)


def test_a_save_waits_for_the_one_before() -> None:
    """Storage writes one checkpoint at a time."""
    training = _training(lag_ms=1_000)
    training.save(1_100)
    saving = training.save(1_230)
    assert (saving.step, saving.blocked_ms, saving.durable_at_ms) == (13, 900, 3_100)
    assert training.committed is not None
    assert training.committed.step == 12


@given(st.integers(1, 500), st.integers(0, 500), st.integers(1, 2_000), st.integers(50, 5_000))
def test_time_is_steps_and_saves(
    step_ms: int, blocked_ms: int, lag_ms: int, interval_ms: int
) -> None:
    """After any number of saves, the time that has passed is that of its steps and saves."""
    training = _training(step_ms=step_ms, blocked_ms=blocked_ms, lag_ms=lag_ms)
    for _ in range(10):
        at_ms = training.next_save_ms(interval_ms)
        step, ended_ms = training.reached(at_ms)
        assert ended_ms == at_ms
        assert at_ms == 1_000 + (step - 11) * step_ms + training.total_blocked_ms
        training.save(at_ms)
