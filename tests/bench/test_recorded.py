"""Noise that was recorded from real processes, and how the simulation draws from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.noise import OWN_SHARE
from bench.recorded import FILE, HOSTS, PARTS, Recorded, Recording, record


def _numbered(steps: int, hosts: int) -> Recording:
    """Times that say of which step they are; hosts differ by a thousandth."""
    each = np.arange(1, steps + 1)[:, None] + np.arange(hosts) / 1000
    return Recording(np.stack([each.astype(np.float32)] * len(PARTS)), 100.0, "numbers")


def test_real_processes_are_recorded(tmp_path: Path) -> None:
    """Every part of every step of every host, and what is read is what was written."""
    made = record(tmp_path / "some.npz", steps=5, hosts=2)
    read = Recording.load(tmp_path / "some.npz")
    assert read.ms.shape == (len(PARTS), 5, 2)
    assert read.about == made.about
    own, spent, paused, *rest = read.ms
    assert (np.stack([own, spent, *rest]) > 0).all()
    assert (spent + paused <= 2 * own).all()


@pytest.mark.parametrize("hosts", [2, 4])
def test_hosts_of_a_recording_stay_together(hosts: int) -> None:
    """At every moment they have the values of one step, each of another host."""
    noise = Recorded(_numbered(900, 4), hosts, np.random.default_rng(1))
    follows = 0
    before = np.zeros(hosts)
    for _ in range(500):
        noise.step(100.0)
        now = noise.device() * 450.5  # of the usual
        assert np.ptp(now) < 1
        assert len(set(now.round(4))) == hosts
        follows += bool(abs(now[0] - before[0] - 1) < 0.1)
        before = now
    assert 450 < follows < 500  # in stretches of half a minute, and not for ever


def test_more_hosts_than_were_recorded_share_nothing() -> None:
    """Each is at a time of its own, so that no group of them has what the others have not."""
    noise = Recorded(_numbered(900, 4), 64, np.random.default_rng(1))
    for _ in range(500):
        noise.step(100.0)
        places = np.sort(noise.device() * 450.5)
        assert (places[9:] - places[:-9] > 1).all()  # by chance two or three are at the same


@pytest.mark.parametrize("hosts", [2, 64])
@pytest.mark.parametrize("step_ms", [100.0, 1205.0])
def test_collections_come_by_steps_and_on_all_hosts_at_once(hosts: int, step_ms: float) -> None:
    """Every third step was recorded with one: so it is, however long steps take."""
    ms = np.ones((len(PARTS), 900, 4), np.float32)
    ms[PARTS.index("own"), ::3], ms[PARTS.index("gc"), ::3] = 5, 4
    ms[PARTS.index("gc"), 1::3] = ms[PARTS.index("gc"), 2::3] = 0
    noise = Recorded(Recording(ms, 100.0, ""), hosts, np.random.default_rng(3))
    told = []
    for _ in range(30):
        noise.step(step_ms)
        told.append(noise.own(OWN_SHARE * step_ms, step_ms).paused > 0)
    assert {tuple(set(each)) for each in told} == {(True,), (False,)}
    assert sum(each[0] for each in told) == 10
    assert all(a[0] == b[0] for a, b in zip(told, told[3:], strict=False))


def test_pauses_do_not_grow_with_slow_input() -> None:
    """Three times the work of all hosts: not of the garbage collector."""
    ms = np.ones((len(PARTS), 9, 4), np.float32)
    ms[PARTS.index("own")], ms[PARTS.index("input")], ms[PARTS.index("gc")] = 10, 2, 6
    noise = Recorded(Recording(ms, 100.0, ""), 4, np.random.default_rng(2))
    for slow in (1.0, 3.0):
        own = noise.own(slow * OWN_SHARE * 100.0, 100.0)
        assert own.paused == pytest.approx(0.6 * OWN_SHARE * 100)
        assert own.work - own.paused == pytest.approx(0.4 * slow * OWN_SHARE * 100)
        assert own.waited == pytest.approx((own.work - own.paused) / 2)


def test_what_is_kept_is_small_and_says_where_it_is_from() -> None:
    """The benchmark's recording."""
    kept = Recording.load(FILE)
    assert kept.ms.shape[0] == len(PARTS)
    assert kept.ms.shape[2] == HOSTS
    assert "cores" in kept.about
    assert FILE.stat().st_size < 200_000
