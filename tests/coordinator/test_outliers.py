"""Who stands out from many, and for how long."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpujob_coordinator.outliers import (
    CALM,
    CALM_RATIO,
    LEAST_SPREAD,
    MOST_Z,
    Bounds,
    Pauses,
    Persistence,
    Score,
    Verdicts,
    scores,
)

BOUNDS = Bounds(1.1)
_VALUES = st.lists(st.floats(0.01, 1000), min_size=2, max_size=40)


@given(_VALUES)
def test_scores_are_those_of_the_definition(values: list[float]) -> None:
    """Each host is compared with the median and the spread of all others."""
    judged = scores(dict(enumerate(values)), BOUNDS)
    for number, value in enumerate(values):
        others = values[:number] + values[number + 1 :]
        middle = statistics.median(others)
        spread = 1.4826 * statistics.median(abs(other - middle) for other in others)
        z = (value - middle) / max(spread, LEAST_SPREAD * middle)
        assert judged[number].ratio == pytest.approx(value / middle)
        is_out = value > 1.1 * middle and z > MOST_Z
        assert judged[number].is_out == is_out


@given(_VALUES, st.floats(0.1, 10))
def test_what_slows_all_down_makes_nobody_stand_out(values: list[float], factor: float) -> None:
    """A common factor changes no score."""
    before = scores(dict(enumerate(values)), BOUNDS)
    after = scores({n: factor * value for n, value in enumerate(values)}, BOUNDS)
    for number, score in before.items():
        assert after[number].ratio == pytest.approx(score.ratio)


@pytest.mark.parametrize(
    ("values", "out"),
    [
        ([100, 100], []),
        ([100, 115], [1]),
        ([100, 109], []),
        ([100, 100, 100, 120], [3]),
        ([90, 100, 110, 120], []),  # it is one of many that differ
        ([100, 100, 80, 100], []),  # to be fast is no fault
        ([0, 0, 0, 1], []),
        ([100] * 300 + [115], [300]),
    ],
)
def test_who_stands_out(values: list[float], out: list[int]) -> None:
    """Only a value far above the others, beyond their own differences."""
    judged = scores({number: float(value) for number, value in enumerate(values)}, BOUNDS)
    assert [number for number, score in judged.items() if score.is_out] == out


def test_differences_that_clocks_make_do_not_count() -> None:
    """However large the ratio is."""
    values = {0: 1.0, 1: 1.0, 2: 3.0}
    assert scores(values, BOUNDS)[2].is_out
    assert not scores(values, Bounds(1.1, least=3.0))[2].is_out
    assert not scores(values, Bounds(1.1, noise=1.0))[2].is_out


OUT, CLEAR, BETWEEN = Score(1.3, MOST_Z + 1), Score(1.0), Score(1.07)
#: Too large, and no wonder where the noise is; of ``MORE``, four say what none of them does.
LARGE, MORE = Score(1.15, 0.4 * MOST_Z), Score(1.15, 0.6 * MOST_Z)


@pytest.mark.parametrize(
    ("windows", "is_raised"),
    [
        ([OUT, OUT], False),
        ([OUT, OUT, OUT], True),
        ([OUT, CLEAR, OUT, OUT], True),
        ([OUT, CLEAR, CLEAR, OUT, OUT], False),
        ([OUT] * 3 + [CLEAR] * (CALM - 1), True),
        ([OUT] * 3 + [CLEAR] * CALM, False),
        ([OUT] * 3 + [BETWEEN] * 50, True),  # neither bad enough nor over
        ([MORE] * 3, False),
        ([MORE] * 4, True),
        ([MORE, MORE, CLEAR, MORE, MORE, MORE], False),
        ([LARGE] * 50, False),
        ([LARGE, OUT, LARGE, OUT], True),
        ([MORE] * 4 + [CLEAR] * CALM, False),
    ],
)
def test_a_finding_lasts(windows: list[Score], *, is_raised: bool) -> None:
    """Three of four windows raise it, or four together; ten calm ones in a row end it."""
    assert BETWEEN.ratio > CALM_RATIO
    persistence = Persistence()
    for score in windows:
        persistence.see(score)
    assert persistence.is_raised == is_raised


def test_hosts_that_never_stood_out_cost_nothing() -> None:
    """Only suspects are kept."""
    verdicts: Verdicts[int] = Verdicts()
    suspected = []
    for score in (OUT, CLEAR, CLEAR, CLEAR, CLEAR):
        verdicts.see({0: CLEAR, 1: score})
        suspected.append(verdicts.are_any_suspected)
    assert suspected == [True, True, True, True, False]
    assert verdicts.raised == {}


def test_a_window_that_is_too_large_is_kept_and_is_no_suspicion_yet() -> None:
    """Only one that stands out by itself is; four that do so together name a host."""
    verdicts: Verdicts[int] = Verdicts()
    seen = []
    for _ in range(4):
        verdicts.see({0: CLEAR, 1: MORE})
        seen.append((verdicts.are_any_suspected, set(verdicts.raised)))
    assert seen == [(False, set())] * 3 + [(True, {1})]


def test_pauses_now_and_then_add_up() -> None:
    """Every fifth step late by a whole one: no median sees it, and it costs a fifth."""
    pauses: Pauses[str] = Pauses(1.1)
    for step in range(1, 121):
        pauses.see({"a": 1.0 if step % 5 == 0 else 0.0, "b": -0.01})
    assert pauses.raised == {"a": pytest.approx(1.2, abs=0.03)}
    for _ in range(140):
        pauses.see({"a": 0.0, "b": 0.0})
    assert pauses.raised == {}


@pytest.mark.parametrize("seed", range(5))
def test_what_comes_seldom_is_no_pause(seed: int) -> None:
    """Three steps of a hundred, late by anything, on every host."""
    rng, pauses = random.Random(seed), Pauses[int](1.1)
    for _ in range(3000):
        pauses.see({h: rng.uniform(0.5, 3) if rng.random() < 0.03 else 0.0 for h in range(8)})
        assert not pauses.raised


@pytest.mark.parametrize("hosts", [2, 4, 8])
@pytest.mark.parametrize("seed", range(3))
def test_what_all_hosts_have_by_turns_is_usual(hosts: int, seed: int) -> None:
    """A store that keeps now one and now another waiting; who always waits is named."""
    rng, pauses = random.Random(seed), Pauses[int](1.1)
    for step in range(3000):
        late = {h: rng.uniform(0.2, 1.0) if rng.random() < 0.2 else 0.0 for h in range(hosts)}
        pauses.see(late if step < 2500 else late | {1: 0.5})
        assert not pauses.raised if step < 2500 else set(pauses.raised) <= {1}
    assert pauses.raised
