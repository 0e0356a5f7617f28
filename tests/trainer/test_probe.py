"""Probes of the devices."""

from __future__ import annotations

import re

import jax
import pytest

from tpujob_trainer.probe import PERIOD_S, Probe, stride


@pytest.mark.parametrize(
    ("step_s", "steps"), [(5.0, 1), (1.0, 1), (0.6, 2), (0.1, 16), (0.0, 1 << 20)]
)
def test_probes_are_about_a_second_apart(step_s: float, steps: int) -> None:
    """A power of two, so that hosts that measure slightly different steps probe together."""
    assert stride(step_s) == steps
    assert steps * step_s >= PERIOD_S or steps == 1 << 20


def test_a_probe_works_on_every_device_and_is_compiled_once() -> None:
    """It runs without any other host, again and again, and nothing goes between the devices."""
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **about: str | int) -> None:  # noqa: ARG001
        if event.endswith("backend_compile_duration"):
            compiled.append(str(about.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    probe = Probe()
    times = [probe.measure() for _ in range(3)]
    assert all(time_s > 0 for time_s in times)
    assert sum("_work" in name for name in compiled) == 1
    assert probe._weights is not None
    assert probe._weights.devices() == {*jax.local_devices()}
    text = probe._program.lower(probe._weights, probe._weights).compile().as_text()
    assert not re.search(r"all-reduce|all-gather|collective-permute|all-to-all", str(text))
