"""The checkpoint interval is the optimum of its stated model, within bounds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpujob_operator.core.interval import (
    LARGEST_CHANGE,
    LEAST_S,
    MOST_S,
    SLACK,
    Costs,
    next_interval_s,
    optimum_s,
    plan,
)

blocked = st.floats(1e-3, 600)
mtbf = st.floats(30, 1e8)
spans = st.floats(0, 3_600)


@given(blocked, mtbf, st.floats(1e-3, 3), st.sampled_from([1, -1]))
def test_optimum_beats_every_other_period(
    blocked_s: float, mtbf_s: float, change: float, sign: int
) -> None:
    """No period, shorter or longer, keeps a larger share of the time."""
    costs = Costs(blocked_s, 20, 90, mtbf_s)
    best_s = optimum_s(blocked_s, mtbf_s)
    other_s = best_s * (1 + change) ** sign
    # Where both are 0, or differ by less than floats can tell, neither is better.
    assert costs.goodput(best_s) >= costs.goodput(other_s) * (1 - 1e-12)


@pytest.mark.parametrize(("blocked_s", "mtbf_s"), [(0.5, 28_440), (0.05, 300), (30, 3_600)])
def test_neighbours_are_worse(blocked_s: float, mtbf_s: float) -> None:
    """A tenth more or less costs something that can be seen."""
    costs = Costs(blocked_s, 1, 10, mtbf_s)
    best_s = optimum_s(blocked_s, mtbf_s)
    for other_s in (0.9 * best_s, 1.1 * best_s):
        assert costs.goodput(other_s) < costs.goodput(best_s)


@given(blocked, mtbf, st.floats(1.01, 100))
def test_rarer_failures_and_dearer_saves_stretch_the_period(
    blocked_s: float, mtbf_s: float, factor: float
) -> None:
    """The period grows with the time between failures and with the cost of a save."""
    best_s = optimum_s(blocked_s, mtbf_s)
    assert optimum_s(blocked_s, mtbf_s * factor) > best_s
    assert optimum_s(blocked_s * factor, mtbf_s) > best_s


@given(st.floats(1e-3, 60), st.floats(600, 1e8))
def test_agrees_with_dalys_estimate_where_that_holds(blocked_s: float, mtbf_s: float) -> None:
    """Daly's higher order estimate, for saves that are short against the time between failures."""
    if blocked_s > 0.01 * mtbf_s:
        return
    ratio = blocked_s / (2 * mtbf_s)
    tau_s = math.sqrt(2 * blocked_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - blocked_s
    assert optimum_s(blocked_s, mtbf_s) == pytest.approx(tau_s + blocked_s, rel=2e-3)


@pytest.mark.parametrize(
    ("costs", "period_s", "goodput"),
    [
        (Costs(0.5, 20, 105, 28_440), 168, 0.9898),
        (Costs(0.5, 20, 105, 3_600), 60, 0.950),
        (Costs(0.1, 2, 30, 600), 11, 0.932),
        (Costs(0.05, 0.5, 17, 300), 5.4, 0.928),
    ],
)
def test_agrees_with_a_monte_carlo(costs: Costs, period_s: float, goodput: float) -> None:
    """Four points of a simulation written without this model, to two tenths of a point."""
    assert optimum_s(costs.blocked_s, costs.mtbf_s) == pytest.approx(period_s, rel=0.03)
    assert costs.goodput(period_s) == pytest.approx(goodput, abs=0.002)


@given(blocked, spans, spans, mtbf, st.floats(1e-3, 120))
def test_plan_keeps_its_bounds(
    blocked_s: float, lag_s: float, recovery_s: float, mtbf_s: float, step_s: float
) -> None:
    """An interval is never shorter than a step or a write, nor longer than storage forces it."""
    made = plan(Costs(blocked_s, lag_s, recovery_s, mtbf_s), step_s=step_s)
    assert made.interval_s >= max(lag_s, step_s + blocked_s, LEAST_S)
    assert made.interval_s <= max(MOST_S, 1.1 * lag_s, step_s + blocked_s)
    assert 0 <= made.goodput < 1


def test_slow_storage_is_named() -> None:
    """If a write outlasts the best interval, the plan says that storage is the limit."""
    assert plan(Costs(0.1, 300, 60, 600), step_s=1).is_storage_bound
    assert not plan(Costs(0.5, 20, 60, 28_440), step_s=1).is_storage_bound


@pytest.mark.parametrize(
    ("current_s", "wanted_s", "expected_s"),
    [(0, 70, 70), (60, 70, 60), (60, 50, 60), (60, 90, 90), (60, 600, 120), (60, 6, 30)],
)
def test_changes_come_in_bounded_steps(
    current_s: float, wanted_s: float, expected_s: float
) -> None:
    """The first plan is taken as it is; then small changes are ignored, large ones are split."""
    assert next_interval_s(current_s, wanted_s) == expected_s


@given(st.floats(1, 1e4), st.floats(1, 1e4))
def test_repeated_plans_come_to_rest_near_what_is_wanted(current_s: float, wanted_s: float) -> None:
    """Within a few commits the interval is as good as the wanted one, and stays."""
    for _ in range(20):
        following_s = next_interval_s(current_s, wanted_s)
        assert following_s / current_s <= LARGEST_CHANGE
        current_s = following_s
    assert next_interval_s(current_s, wanted_s) == current_s
    assert 1 / SLACK <= wanted_s / current_s <= SLACK
