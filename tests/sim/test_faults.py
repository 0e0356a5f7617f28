"""Faults come as often and as bunched as their process says, and equally for equal seeds."""

import dataclasses
import itertools
import random

import pytest

from tpujob_operator.sim.faults import DAY_MS, FaultKind, exponential, weibull
from tpujob_operator.sim.scenario import SCENARIOS, Faults, Scenario


@pytest.mark.parametrize("gaps", [exponential(1000), weibull(1000, 0.7), weibull(1000, 1.5)])
def test_gaps_have_their_mean(gaps: object) -> None:
    """Whatever the shape, faults are as frequent as asked."""
    assert callable(gaps)
    drawn = list(itertools.islice(gaps(random.Random(1)), 20_000))
    assert sum(drawn) / len(drawn) == pytest.approx(1000, rel=0.05)


def test_a_small_shape_bunches_faults() -> None:
    """The variance of Weibull gaps with a shape below 1 exceeds that of exponential ones."""

    def spread(gaps: object) -> float:
        assert callable(gaps)
        drawn = list(itertools.islice(gaps(random.Random(1)), 20_000))
        mean = sum(drawn) / len(drawn)
        return float(sum((gap - mean) ** 2 for gap in drawn) / len(drawn) / mean**2)

    assert spread(weibull(1000, 0.5)) > 2 * spread(exponential(1000))


def test_llama3_has_its_published_interruptions() -> None:
    """419 unplanned and 47 planned ones, within 54 days."""
    faults = SCENARIOS["llama3"].draw(1)
    planned = [fault for fault in faults if fault.kind is FaultKind.PLANNED]
    assert (len(faults), len(planned)) == (466, 47)
    assert faults == sorted(faults)
    assert faults[-1].at_ms < 54 * DAY_MS


def test_same_seed_same_faults_whatever_the_features() -> None:
    """Rows of a table differ by what the product does, and by nothing else."""
    one = SCENARIOS["year"]
    other = dataclasses.replace(one, features=dataclasses.replace(one.features, spares=3))
    assert one.draw(7) == other.draw(7)
    assert one.draw(7) != one.draw(8)


def test_slices_that_share_a_fate_are_lost_together() -> None:
    """A host's fault takes its whole group, the last group being what is left."""
    scenario = Scenario("s", 5 * 16, 16, 100, Faults(per_chip_day=0.1, host_share=1, width=2))
    groups = {fault.slices for fault in scenario.draw(1)}
    assert groups == {(0, 1), (2, 3), (4,)}
