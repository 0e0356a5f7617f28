"""Costs of saves and failures are read from the job's own timeline."""

from functools import reduce

from hypothesis import given

from tests.core.histories import CREATED_MS, event, histories, loss, progress, start
from tpujob_agent.protocol import Event, EventKind
from tpujob_operator.core.measures import HALF_LIFE_MS, KEPT, FailureRate, Measures
from tpujob_operator.core.observations import Observation

T0 = CREATED_MS
DAY_S = 86_400


def _fold(told: list[Observation]) -> Measures:
    events = (seen for seen in told if isinstance(seen, Event))
    return reduce(Measures.apply, events, Measures())


def _committed(at_ms: int, step: int, blocked_ms: int = 100, lag_ms: int = 2_000) -> Event:
    data = {"step": step, "committedAtMs": at_ms, "blockedMs": blocked_ms, "lagMs": lag_ms}
    return event(at_ms, EventKind.COMMITTED, **data)


def _trained() -> list[Observation]:
    """100 steps of a second each, the 50th saved."""
    return [*start(T0), progress(T0 + 1_000, 1, 1), _committed(T0 + 52_000, 50),
            progress(T0 + 100_000, 2, 100)]  # fmt: skip


def _back(at_ms: int, *, restored: int) -> list[Observation]:
    """The next world restores this step and trains on, 5 s after it was formed."""
    return [
        *start(at_ms, generation=2, restored=restored),
        progress(at_ms + 5_000, restored + 1, restored + 1, generation=2),
    ]


def test_costs_are_unknown_until_a_save_has_told() -> None:
    """Without a measured save there is nothing to plan with."""
    assert _fold(start(T0)).costs(16) is None
    assert _fold([*start(T0), event(T0 + 90, EventKind.COMMITTED, step=1)]).costs(16) is None


def test_start_stands_for_recovery_until_one_was_seen() -> None:
    """Before the first loss, a recovery is taken to last as long as the start did."""
    costs = _fold(_trained()).costs(16)
    assert costs is not None
    assert (costs.blocked_s, costs.lag_s, costs.recovery_s) == (0.1, 2.0, 1.0)


def test_recovery_lasts_from_the_fault_to_the_next_step() -> None:
    """Detection and start are part of it."""
    told = [*_trained(), loss(T0 + 102_000, T0 + 100_000, step=100)]
    measures = _fold([*told, *_back(T0 + 103_000, restored=50)])
    assert measures.recovery_ms == (8_000,)
    assert measures.rate.failures == 1
    # 99 s of training, and nothing of the time in which it recovered
    assert round(measures.rate.exposure_ms) == 99_000


def test_losses_that_cost_no_work_are_no_failures() -> None:
    """Neither a leave that saved in time nor a restart from memory calls for more saves."""
    lost = [*_trained(), loss(T0 + 102_000, T0 + 100_000, step=100)]
    from_memory = _fold([*lost, *_back(T0 + 103_000, restored=99)])
    saved = _fold([*_trained(), _committed(T0 + 100_000, 100),
                   loss(T0 + 102_000, T0 + 100_000, step=100, cause="preemption"),
                   *_back(T0 + 103_000, restored=100)])  # fmt: skip
    assert from_memory.rate.failures == saved.rate.failures == 0
    assert len(from_memory.recovery_ms) == len(saved.recovery_ms) == 1


def test_one_recovery_with_several_losses_is_one_failure() -> None:
    """A world that is lost again before its first step has nothing more to lose."""
    told = [*_trained(), loss(T0 + 102_000, T0 + 100_000, step=100),
            loss(T0 + 104_000, T0 + 103_500, generation=2, step=0)]  # fmt: skip
    measures = _fold([*told, *_back(T0 + 105_000, restored=50)])
    assert measures.rate.failures == 1
    assert measures.recovery_ms == (10_000,)


def test_time_between_failures_scales_with_chips_until_experience_outweighs_it() -> None:
    """The prior is one failure in 2,000 chip-days; ten failures in ten days are one a day."""
    none = FailureRate()
    assert round(none.mtbf_s(2_000) / DAY_S, 6) == 1
    assert round(none.mtbf_s(16) / DAY_S, 6) == 125
    seen = FailureRate().after(T0, trained_ms=100 * DAY_S * 1000, failures=100)
    assert round(seen.mtbf_s(2_000) / DAY_S, 6) == 1
    assert seen.mtbf_s(16) / DAY_S < 2.3


def test_experience_fades() -> None:
    """After a half-life the same experience has half its weight, exposure and failures alike."""
    seen = FailureRate().after(T0, trained_ms=1_000_000, failures=8)
    later = seen.after(T0 + HALF_LIFE_MS)
    assert (later.exposure_ms, later.failures) == (500_000, 4)


@given(histories())
def test_any_history_can_be_measured(told: list[Observation]) -> None:
    """Whatever is told and in whatever order: nothing is negative, nothing grows without bound."""
    measures = _fold(told)
    assert measures.rate.exposure_ms >= 0
    assert measures.rate.failures >= 0
    assert measures.step_ms >= 0
    for samples in (measures.blocked_ms, measures.lag_ms, measures.recovery_ms):
        assert len(samples) <= KEPT
        assert all(sample >= 0 for sample in samples)
