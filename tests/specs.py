"""Specs of jobs that several tests use."""

from __future__ import annotations

from typing import Any

TWO_SLICES: dict[str, Any] = {
    "accelerator": "v5e",
    "topology": "2x2",
    "slices": 2,
    "trainer": {"config": {"steps": 100}},
    "checkpoint": {"directory": "/checkpoints"},
}
