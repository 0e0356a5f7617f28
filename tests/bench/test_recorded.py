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


@pytest.mark.parametrize("hosts", [2, 4, 6])
def test_hosts_of_a_recording_stay_together(hosts: int) -> None:
    """At every moment a group has the values of one step, of different hosts."""
    noise = Recorded(_numbered(900, 4), hosts, np.random.default_rng(1))
    follows = 0
    before = np.zeros(hosts)
    for _ in range(500):
        noise.step(100.0)
        now = noise.device() * 450.5  # of the usual
        for first in range(0, hosts, 4):
            group = now[first : first + 4]
            assert np.ptp(np.floor(group + 0.25)) <= 1
            assert len(set(group.round(4))) == len(group)
        follows += bool(abs(now[0] - before[0] - 1) < 0.1)
        before = now
    assert 450 < follows < 500  # in stretches of half a minute, and not for ever


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
