"""The roofline is what hand calculation gives, and never promises more than the hardware has."""

from __future__ import annotations

import math

import pytest

from tests.trainer.libtpu import slices
from tpujob_ahead.collectives import Collective
from tpujob_ahead.roofline import bandwidth, roofline
from tpujob_tpu.chips import CHIPS
from tpujob_trainer import topology
from tpujob_trainer.sharding import AXES


def mesh_of(accelerator: str, name: str, **sizes: int) -> topology.Devices:
    """Devices of one slice in the shape of a mesh; what is not named is 1."""
    _, devices = slices(accelerator, name)
    return topology.layout(tuple(sizes.get(axis, 1) for axis in AXES), devices)


@pytest.mark.parametrize(
    ("accelerator", "name", "sizes", "links"),
    [
        ("v5e", "16x16", {"fsdp": 16, "tensor": 16}, 2),  # one ring
        ("v5e", "16x16", {"fsdp": 1, "tensor": 256}, 4),  # two rings
        ("v5e", "4x4", {"fsdp": 4, "tensor": 4}, 1),  # a line
        ("v5p", "4x4x4", {"fsdp": 16, "tensor": 4}, 2),
        ("v5p", "2x2x1", {"fsdp": 1, "tensor": 4}, 2),  # a square: two links
        ("v7", "2x2x1", {"fsdp": 4, "tensor": 2}, math.inf),  # both devices of a chip
        ("v7", "4x4x4", {"fsdp": 16, "tensor": 8}, 2),  # a ring of chips, both devices together
    ],
)
def test_bandwidth_follows_the_links(
    accelerator: str, name: str, sizes: dict[str, int], links: float
) -> None:
    """A ring has two directions, a line one, and devices of one chip need no link."""
    mesh = mesh_of(accelerator, name, **sizes)
    chip = CHIPS[accelerator]
    group = list(mesh.reshape(-1, sizes["tensor"])[0])
    assert bandwidth(chip, group, mesh) == pytest.approx(links * chip.ici_link_bytes_per_s)


def test_devices_of_a_chip_share_its_links() -> None:
    """Groups that each hold one device of a chip have half of its links."""
    mesh = mesh_of("v7", "4x4x4", fsdp=64, tensor=2)
    group = list(mesh.reshape(-1, 2)[:, 0])
    assert bandwidth(CHIPS["v7"], group, mesh) == pytest.approx(6 * 90e9 / 2)


def test_roofline_by_hand() -> None:
    """Each term is work divided by speed, the longest one bounds step and MFU."""
    mesh = mesh_of("v5e", "4x4", fsdp=4, tensor=4)
    found = [
        Collective("all-reduce", (0, 1, 2, 3), 4, 3_000_000_000, 2),
        Collective("all-reduce", (), 2, 1_000_000_000, 1, is_between_slices=True),
    ]
    bound = roofline(
        CHIPS["v5e"],
        chips=32,
        flops=32 * 197e12,
        model_flops=16 * 197e12,
        hbm_bytes=819e9 / 2,
        found=found,
        mesh=mesh,
    )
    assert bound.compute_s == pytest.approx(1.0)
    assert bound.hbm_s == pytest.approx(0.5)
    assert bound.ici_s == pytest.approx(2 * 2 * 0.75 * 3e9 / 45e9)
    assert bound.dcn_s == pytest.approx(1e9 / 3.125e9)
    assert bound.bound_by == "compute"
    assert bound.step_s == pytest.approx(1.0)
    assert bound.mfu == pytest.approx(0.5)
