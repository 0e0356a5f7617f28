"""Probes of the devices."""

from __future__ import annotations

import pytest

from tpujob_trainer.probe import PERIOD_S, Probe, stride


@pytest.mark.parametrize(
    ("step_s", "steps"), [(5.0, 1), (1.0, 1), (0.6, 2), (0.1, 16), (0.0, 1 << 20)]
)
def test_probes_are_about_a_second_apart(step_s: float, steps: int) -> None:
    """A power of two, so that hosts that measure slightly different steps probe together."""
    assert stride(step_s) == steps
    assert steps * step_s >= PERIOD_S or steps == 1 << 20


def test_a_probe_takes_a_moment_on_every_device() -> None:
    """It runs without any other host, again and again."""
    probe = Probe()
    times = [probe.measure() for _ in range(3)]
    assert all(time_s > 0 for time_s in times)
    assert len(probe._weights) == len(probe._devices)
