"""The least time a step can take: what has to be computed, read and sent, at full speed.

All four go on at once at best, so the longest of them bounds the step from below, and
the model FLOPs utilisation from above. No measurement is in here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpujob_ahead.collectives import Collective
from tpujob_tpu.chips import Chip
from tpujob_trainer.topology import Devices, places, wrapping


@dataclasses.dataclass(frozen=True, slots=True)
class Roofline:
    """Least seconds of a step by what is busy, and the most MFU that leaves."""

    compute_s: float
    hbm_s: float
    ici_s: float
    dcn_s: float
    mfu: float

    @property
    def terms_s(self) -> dict[str, float]:
        """Least seconds by what is busy."""
        names = ("compute", "HBM", "ICI", "DCN")
        return dict(zip(names, (self.compute_s, self.hbm_s, self.ici_s, self.dcn_s), strict=True))

    @property
    def step_s(self) -> float:
        """Least seconds of a step."""
        return max(self.terms_s.values())

    @property
    def bound_by(self) -> str:
        """What takes longest."""
        return max(self.terms_s, key=lambda name: self.terms_s[name])

    def to_json(self) -> dict[str, Any]:
        """The estimate as plain data."""
        terms = {f"{name.lower()}Seconds": seconds for name, seconds in self.terms_s.items()}
        return {"mfu": self.mfu, "stepSeconds": self.step_s, "boundBy": self.bound_by, **terms}


def roofline(
    chip: Chip,
    *,
    chips: int,
    flops: float,
    model_flops: float,
    hbm_bytes: float,
    found: Sequence[Collective],
    mesh: Devices,
) -> Roofline:
    """The roofline of one step.

    Args:
        chip: what a chip can do.
        chips: of all slices.
        flops: what the step performs on all chips, recomputation included.
        model_flops: what the model needs, the numerator of MFU.
        hbm_bytes: least bytes that one device reads and writes.
        found: the step's collectives.
        mesh: devices of one slice.
    """
    compute_s = flops / (chips * chip.peak_flops)
    ici_s = sum(
        one.sent_bytes / bandwidth(chip, list(mesh.flat[list(one.group)]), mesh)
        for one in found
        if not one.is_between_slices
    )
    between = sum(one.sent_bytes for one in found if one.is_between_slices)
    terms = (
        compute_s,
        hbm_bytes * chip.devices / chip.hbm_bytes_per_s,
        ici_s,
        between * chip.devices / chip.dcn_bytes_per_s,
    )
    return Roofline(*terms, mfu=model_flops / (chips * chip.peak_flops * max(terms)))


def bandwidth(chip: Chip, group: Sequence[Any], mesh: Devices) -> float:
    """Most bytes a second that a device can send to, or get from, the rest of its group.

    A torus axis that the group spans gives a link, and one in the other direction where
    it is a ring; devices of one chip share its links unless they work together.
    """
    spread = places(group)
    ring = wrapping(list(mesh.flat))
    extent = np.array([len(set(column)) for column in spread.T])
    links = sum(1 + (n == size) for n, size in zip(extent[:3], ring, strict=True) if n > 1)
    if not links:
        return math.inf  # within a chip
    return float(links * chip.ici_link_bytes_per_s * extent[-1] / chip.devices)
