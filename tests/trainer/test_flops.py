"""Arithmetic of a step, against numbers worked out by hand."""

from __future__ import annotations

import types
from typing import Any, cast

import jax
import pytest

from tpujob_trainer import config as configs
from tpujob_trainer import flops


def test_flops_per_token_by_hand() -> None:
    """One layer, worked out on paper: weights of matmuls times six, plus half the scores."""
    config = configs.load(
        {
            "model": {"dModel": 8, "layers": 1, "heads": 2, "kvHeads": 1, "dFF": 16, "vocab": 256},
            "sequenceLength": 4,
            "checkpoint": {"directory": "c"},
        }
    )
    attention = 8 * 8 + 8 * 4 + 8 * 4 + 8 * 8
    weights = attention + 3 * 8 * 16 + 8 * 256
    assert flops.flops_per_token(config) == 6 * weights + 6 * 1 * 8 * 4


def test_llama3_8b_is_near_six_times_its_size() -> None:
    """For a known model, the count is 6 N without the embedding, plus a few percent attention."""
    config = configs.load(
        {
            "model": {"preset": "llama3-8b"},
            "sequenceLength": 8192,
            "checkpoint": {"directory": "c"},
        }
    )
    assert flops.flops_per_token(config) == pytest.approx(6 * 7.5e9 + 6.4e9, rel=0.01)


def test_mfu_is_unknown_on_cpu() -> None:
    """No peak, no ratio: better none than a wrong one."""
    config = configs.load({"checkpoint": {"directory": "c"}})
    assert flops.mfu(config, jax.devices(), 0.1) is None


def test_peak_counts_chips_and_not_devices() -> None:
    """Two devices that share a chip's coordinates are one chip."""

    def device(x: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(device_kind="TPU v4", coords=(x, 0, 0), slice_index=0)

    devices = cast("Any", [device(0), device(0), device(1), device(1)])
    assert flops.peak_flops(devices) == 2 * 275e12
