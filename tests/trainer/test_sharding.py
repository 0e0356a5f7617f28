"""Sizes and devices that do not fit are refused with what would fit."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from jax.sharding import PartitionSpec

from tpujob_trainer import config as configs
from tpujob_trainer import sharding, topology
from tpujob_trainer.config import MeshConfig
from tpujob_trainer.sharding import ShardingError


def test_spec_follows_the_table() -> None:
    """Names of dimensions become mesh axes, unnamed ones stay whole."""
    assert sharding.spec("batch", None) == PartitionSpec(("slice", "fsdp"), None)
    assert sharding.spec("embed", "kv_heads", None) == PartitionSpec("fsdp", "tensor", None)


def test_colliding_dimensions_are_refused() -> None:
    """No array is split twice over one mesh axis."""
    with pytest.raises(ShardingError, match="collide on mesh axis tensor"):
        sharding.spec("heads", "ff")
    with pytest.raises(ShardingError, match="collide on mesh axis fsdp"):
        sharding.spec("batch", "embed")


@pytest.mark.parametrize(
    ("mesh", "devices", "slices", "expected"),
    [
        (MeshConfig(), 8, 1, {"slice": 1, "fsdp": 8, "context": 1, "tensor": 1}),
        (MeshConfig(), 8, 2, {"slice": 2, "fsdp": 4, "context": 1, "tensor": 1}),
        (
            MeshConfig(slice=2, fsdp=-1, tensor=2),
            16,
            1,
            {"slice": 2, "fsdp": 4, "context": 1, "tensor": 2},
        ),
        (
            MeshConfig(slice=-1, fsdp=2, tensor=2),
            16,
            1,
            {"slice": 4, "fsdp": 2, "context": 1, "tensor": 2},
        ),
        (
            MeshConfig(fsdp=-1, context=2, tensor=2),
            16,
            2,
            {"slice": 2, "fsdp": 2, "context": 2, "tensor": 2},
        ),
        (
            MeshConfig(slice=1, fsdp=1, tensor=4),
            4,
            1,
            {"slice": 1, "fsdp": 1, "context": 1, "tensor": 4},
        ),
    ],
)
def test_rest_axis_takes_the_remaining_devices(
    mesh: MeshConfig, devices: int, slices: int, expected: dict[str, int]
) -> None:
    """-1 takes what the others leave, and slice follows the number of TPU slices."""
    assert sharding.axis_sizes(mesh, devices=devices, slices=slices) == expected


@pytest.mark.parametrize(
    "mesh", [MeshConfig(slice=1, fsdp=-1, tensor=3), MeshConfig(slice=1, fsdp=2, tensor=2)]
)
def test_mesh_that_does_not_fit_lists_what_does(mesh: MeshConfig) -> None:
    """The error names the meshes that the devices allow."""
    with pytest.raises(ShardingError, match=r"fsdp x tensor can be 8x1, 4x2, 2x4, 1x8"):
        sharding.axis_sizes(mesh, devices=8, slices=1)


def test_mesh_with_a_context_axis_that_does_not_fit_lists_what_does() -> None:
    """The axis along rows is kept in the meshes that the error names."""
    mesh = MeshConfig(slice=1, fsdp=3, context=2, tensor=1)
    with pytest.raises(ShardingError, match=r"context 2, fsdp x tensor can be 4x1, 2x2, 1x4"):
        sharding.axis_sizes(mesh, devices=8, slices=1)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"globalBatch": 8, "accumulation": 4},
            "globalBatch / accumulation 2 cannot be split over slice 2 x fsdp 2 = 4",
        ),
        (
            {"sequenceLength": 33},
            "sequenceLength 33 cannot be split over context 2 = 2: take sequenceLength 32 or 34",
        ),
        (
            {"globalBatch": 6},
            "globalBatch 6 cannot be split over slice 2 x fsdp 2 = 4: take globalBatch 4 or 8",
        ),
        ({"globalBatch": 6}, "or split it over one of 1, 2, 3, 6"),
        ({"model": {"kvHeads": 1}}, "kvHeads 1 cannot be split over tensor 2 = 2: take"),
        ({"model": {"dFF": 33}}, "model.dFF 33"),
        ({"model": {"vocab": 257}}, "model.vocab 257"),
    ],
)
def test_size_that_does_not_divide_names_its_field(change: dict[str, Any], expected: str) -> None:
    """Every field that does not divide is listed, with the sizes that would."""
    config = configs.load({"checkpoint": {"directory": "c"}, "globalBatch": 8, **change})
    with pytest.raises(ShardingError) as caught:
        sharding.check_divides(config, {"slice": 2, "fsdp": 2, "context": 2, "tensor": 2})
    assert expected in str(caught.value)


def test_tensor_axis_runs_over_neighbours() -> None:
    """The tensor axis takes adjacent devices, and the slice axis splits the list in halves."""
    mesh = topology.make_mesh({"slice": 2, "fsdp": 2, "context": 1, "tensor": 2}, jax.devices()[:8])
    ids = [[[d.id for d in row[0]] for row in block] for block in mesh.devices]
    assert ids == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_copies_counts_devices_that_hold_the_same_block() -> None:
    """An array split over fsdp alone is there once for each slice and tensor position."""
    mesh = topology.make_mesh({"slice": 2, "fsdp": 2, "context": 1, "tensor": 2}, jax.devices()[:8])
    assert sharding.copies(sharding.spec("embed", None), mesh) == 4
    assert sharding.copies(sharding.spec("batch", "vocab"), mesh) == 1
    assert sharding.copies(sharding.spec(None), mesh) == 8
