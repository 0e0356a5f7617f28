"""Estimates: the published arithmetic done right, and the simulator agrees with the formula."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpujob_operator.sim.estimate import (
    Assumed,
    Capacity,
    Hazard,
    Work,
    choices,
    comparable,
    estimate,
    simulated,
)
from tpujob_operator.sim.scenario import Features, Times
from tpujob_tpu.catalogue import USABLE
from tpujob_tpu.generations import Generation
from tpujob_tpu.prices import Prices
from tpujob_tpu.provisioning import Provisioning

V5P = Capacity("v5p", "4x4x4", 1)


def _priced(usd: float) -> Prices:
    return {name: {Provisioning.ON_DEMAND: usd} for name in ("v5e", "v5p")}


@pytest.mark.parametrize(
    ("capacity", "usd", "tokens_per_s", "expected"),
    [
        (Capacity("v5e", "16x16", 2), 2.0, 125_000, 2.2756),
        (Capacity("v5p", "4x4x4", 1), 8.0, 89_000, 1.598),
    ],
    ids=["$1,024 an hour", "$512 an hour"],
)
def test_price_of_tokens(
    capacity: Capacity, usd: float, tokens_per_s: int, expected: float
) -> None:
    """$2.28 and $1.60 a million, at a goodput of one."""
    work = Work(steps=1000, tokens=10 * tokens_per_s)
    found = estimate(capacity, work, Assumed(step_s=10, prices=_priced(usd)))
    assert found.usd_per_million_tokens is not None
    assert found.usd_per_million_tokens * found.goodput == pytest.approx(expected, abs=1e-3)
    assert found.usd_per_day == 24 * capacity.chips * usd


def test_saving_by_a_reservation() -> None:
    """128 chips half of each month at $8 with 40 % off: $1.77 million a year."""
    work = Work(steps=180 * 86_400)  # twelve months of 30 days, half of them
    assumed = Assumed(step_s=1, prices=_priced(8))
    full = estimate(Capacity("v5p", "4x4x8", 1), work, assumed)
    reserved = dataclasses.replace(full.capacity, bought=Provisioning.RESERVED)
    less = estimate(reserved, work, assumed)
    assert full.usd is not None
    assert less.usd is not None
    assert (full.usd - less.usd) * full.goodput == pytest.approx(1_769_472)


def test_step_follows_from_flops_and_utilisation() -> None:
    """64 chips of 459 TFLOP/s at 50 %."""
    work = Work(steps=100, tokens=1000, flops=64 * 459e12)
    found = estimate(V5P, work, Assumed(mfu=0.5))
    assert found.step_s == pytest.approx(2)
    assert found.mfu == pytest.approx(0.5)
    assert found.days == pytest.approx(200 / 86_400 / found.goodput)
    measured = estimate(V5P, work, Assumed(step_s=4))
    assert measured.mfu == pytest.approx(0.25)


def test_what_is_not_known_is_left_out() -> None:
    """A program without numbers has a goodput and a daily price; v7 has no price."""
    found = estimate(V5P, Work(), Assumed())
    assert (found.step_s, found.mfu, found.days, found.usd) == (None, None, None, None)
    assert found.usd_per_day == pytest.approx(64 * 24 * 4.2)
    v7 = estimate(Capacity("v7", "2x2x1", 1), Work(10, 10, 1e15), Assumed())
    assert v7.usd_per_day is v7.usd is v7.usd_per_million_tokens is None
    assert v7.days is not None


def test_spares_are_paid_for_and_save_time() -> None:
    """A lost slice is replaced at once."""
    work, assumed = Work(steps=10_000), Assumed(step_s=1)
    without, spare = (
        estimate(dataclasses.replace(V5P, slices=4, spares=n), work, assumed) for n in (0, 1)
    )
    assert spare.goodput > without.goodput
    assert spare.usd_per_day == pytest.approx(without.usd_per_day * 5 / 4)  # type: ignore[operator]


def test_spot_is_planned_for_only_if_a_save_fits_into_its_notice() -> None:
    """Pods have 15 s, of which the agent keeps five."""
    spot = dataclasses.replace(V5P, slices=2, bought=Provisioning.SPOT)
    slow = Hazard.of(spot, Assumed(preemptions_per_slice_day=3))
    fast = Hazard.of(spot, Assumed(preemptions_per_slice_day=3, times=Times(lag=5)))
    assert slow.unplanned == pytest.approx(6 + 128 * 5e-4)
    assert (slow.planned, fast.planned) == (0, 6)
    assert fast.unplanned == pytest.approx(128 * 5e-4)
    assert fast.host_share == pytest.approx(0.78)
    work = Work(steps=100_000)
    steady = estimate(dataclasses.replace(spot, bought=Provisioning.ON_DEMAND), work, Assumed())
    taken = estimate(spot, work, Assumed())
    assert taken.goodput < steady.goodput
    assert taken.interval_s < steady.interval_s


def test_flex_start_ends_after_its_run_time() -> None:
    """The shorter the run, the more starts."""
    flex = dataclasses.replace(V5P, bought=Provisioning.FLEX_START)
    week, hour = (estimate(flex, Work(), Assumed(run_s=s)).goodput for s in (604_800, 3_600))
    assert hour < week < estimate(V5P, Work(), Assumed()).goodput


@given(
    st.sampled_from(USABLE),
    st.sampled_from(USABLE),
    st.integers(1, 64),
    st.data(),
)
def test_comparable_slices_compute_as_much(
    mine: Generation, other: Generation, slices: int, data: st.DataObject
) -> None:
    """At least the same peak on slices that exist, and the generation itself is left as it is."""
    topology = data.draw(st.sampled_from(mine.topologies))
    capacity = Capacity(mine.name, topology, slices)
    found = comparable(capacity, other.name)
    assert found.peak_flops >= capacity.peak_flops * (1 - 1e-9)
    assert found.slices >= 1
    assert found.accelerator == other.name
    assert comparable(capacity, capacity.accelerator) == capacity


def test_choices_are_all_that_can_be_bought() -> None:
    """The job's own generation first; old ones have no flex-start."""
    found = list(choices(V5P))
    assert {item.accelerator for item in found[:4]} == {"v5p"}
    assert {item.accelerator for item in found} == {generation.name for generation in USABLE}
    flex = {item.accelerator for item in found if item.bought is Provisioning.FLEX_START}
    assert flex == {"v5e", "v5p", "v6e", "v7"}


@pytest.mark.parametrize(
    "capacity",
    [
        Capacity("v5e", "16x16", 64),
        Capacity("v5e", "16x16", 64, spares=1),
        Capacity("v5e", "16x16", 16, bought=Provisioning.SPOT),
    ],
    ids=str,
)
def test_simulation_agrees(capacity: Capacity) -> None:
    """Within a percent, where there are enough faults for one to be typical."""
    assumed = Assumed(step_s=6)
    found = estimate(capacity, Work(steps=100_000), assumed)
    _, run = simulated(found, assumed, Features(spares=capacity.spares), seed=1)
    assert run.faults > 30
    assert run.goodput == pytest.approx(found.goodput, abs=0.01)


def test_simulation_of_recreated_pods_agrees() -> None:
    """Within a percent, and well below recovery in place."""
    capacity = Capacity("v5e", "16x16", 16)
    assumed = Assumed(step_s=6, in_place=False)
    found = estimate(capacity, Work(steps=100_000), assumed)
    _, run = simulated(found, assumed, Features(in_place=False), seed=1)
    assert run.goodput == pytest.approx(found.goodput, abs=0.01)
    in_place = estimate(capacity, Work(steps=100_000), Assumed(step_s=6))
    assert found.goodput < in_place.goodput - 0.005
