"""A small sample of ``python -m bench stragglers``, and the cases at its borders."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.stragglers import LIMIT, figures, matrix, noises, run
from bench.traces import Kind, Moment, World, traps
from tpujob_coordinator.stragglers import HostStep, Stragglers


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_fault_is_found_and_its_host_named(kind: Kind) -> None:
    """In worlds of 2, 4 and 8 hosts, from 15 % on."""
    found = figures(matrix(3, [kind], [1.15, 1.5, 2.0], [2, 4, 8]))
    assert found.precision == found.recall == found.culprit == 1
    assert found.samples <= 50


@pytest.mark.parametrize("hosts", [2, 8, 64])
def test_a_slow_device_is_found_where_probes_scatter(hosts: int) -> None:
    """As they did where they were recorded: a window's median by 3 %, of which five are 15 %."""
    found = figures(matrix(8, [Kind.DEVICE], [1.15], [hosts], noises("recorded")))
    assert found.precision == found.recall == found.culprit == 1


@pytest.mark.parametrize("kind", Kind)
def test_small_differences_are_left_alone(kind: Kind) -> None:
    """What costs 2 % is not worth a word."""
    assert all(run(kind, 1.02, 4, seed).named is None for seed in range(2))


@pytest.mark.parametrize("seed", range(2))
def test_what_all_hosts_share_is_no_host_of_them(seed: int) -> None:
    """Slow stores, slow devices, compiling and saving name nobody, and slowness is told."""
    rng = np.random.default_rng(seed)
    world, watch = World(4, 1000.0, rng), Stragglers(range(4), LIMIT)
    for moment in itertools.islice(traps(rng), 3000):
        world.advance(watch, None, moment)
        assert not watch.stragglers


def test_a_slowdown_of_all_is_told_as_such() -> None:
    """Twice the time on the devices of all hosts: slow, and nobody's fault."""
    rng = np.random.default_rng(1)
    world, watch = World(4, 500.0, rng), Stragglers(range(4), LIMIT)
    told = []
    for steps, device in ((100, 1.0), (60, 2.0), (400, 1.0)):
        for _ in range(steps):
            world.advance(watch, None, Moment(device=device))
            assert not watch.stragglers
        told.append((watch.pace.is_slow, round(watch.pace.ratio, 1), watch.pace.grown))
    assert [is_slow for is_slow, _, _ in told] == [False, True, False]
    assert told[1][1:] == (1.9, "wait")


def late(watch: Stragglers[int], late_ms: float, clock_error: float = 1.0, **spent: float) -> None:
    """A hundred steps of 100 ms, for each of which host 2 of 4 is late."""
    for step in range(1, 101):
        for host in range(4):
            at = 1e12 + 100 * step + (late_ms if host == 2 else 0)
            extra = spent if host == 2 else {}
            watch.stepped(host, step, HostStep(at, clock_error, **extra))


def watch_of_four() -> Stragglers[int]:
    """A detector for four hosts."""
    return Stragglers(range(4), LIMIT)


@pytest.mark.parametrize("cause", ["input", "gc", "save"])
def test_the_cause_is_what_explains_the_lateness(cause: str) -> None:
    """At least half of it."""
    watch = watch_of_four()
    late(watch, 30, **{cause: 20.0})
    assert watch.stragglers[2].cause == cause
    watch = watch_of_four()
    late(watch, 30, **{cause: 10.0})
    assert watch.stragglers[2].cause == "host"


def test_a_clock_that_is_not_known_well_accuses_nobody() -> None:
    """What may be the clock's error is not counted as lateness."""
    watch = watch_of_four()
    late(watch, 30, clock_error=25)
    assert watch.stragglers == {}


def test_a_host_that_tells_nothing_is_not_judged() -> None:
    """Nor are the others by what it might have done; and what they told is forgotten."""
    watch = watch_of_four()
    for step in range(1000):
        for host in (0, 1, 3):
            watch.stepped(host, step, HostStep(100.0 * step + 50 * host))
    assert watch.stragglers == {}
    assert len(watch._pending) <= 64


@given(
    late_ms=st.lists(st.integers(0, 80), min_size=2, max_size=6),
    data=st.data(),
    shift=st.integers(-(10**9), 10**9),
)
def test_neither_order_nor_the_hour_matters(
    late_ms: list[int], data: st.DataObject, shift: int
) -> None:
    """Hosts tell of a step in any order, and any time is as good as another."""
    hosts = range(len(late_ms))
    one, other = Stragglers(hosts, LIMIT), Stragglers(hosts, LIMIT)
    order = data.draw(st.permutations(hosts))
    for step in range(1, 61):
        for host in hosts:
            one.stepped(host, step, HostStep(10**12 + 100 * step + late_ms[host]))
        for host in order:
            other.stepped(host, step, HostStep(10**12 + shift + 100 * step + late_ms[host]))
    assert set(one.stragglers) == set(other.stragglers)
    assert len(one.stragglers) <= len(late_ms) // 2  # never all of them, nor most


def test_the_ratio_is_what_the_job_would_gain() -> None:
    """30 ms of 100: without the straggler a step would take 70."""
    watch = watch_of_four()
    late(watch, 30, clock_error=0)
    assert watch.stragglers[2].ratio == pytest.approx(100 / 70)
