"""Devices are laid out to the physical torus, as the TPU compiler itself describes it."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest

from tests.trainer.libtpu import slices
from tpujob_tpu.chips import CHIPS
from tpujob_trainer import topology
from tpujob_trainer.sharding import AXES, ShardingError

SLICES = [
    ("v3", "4x4"), ("v4", "2x2x4"), ("v4", "4x4x4"), ("v5e", "1x1"), ("v5e", "2x2"), ("v5e", "2x4"),
    ("v5e", "4x4"), ("v5e", "16x16"), ("v5p", "2x2x1"), ("v5p", "4x4x4"), ("v5p", "4x4x8"),
    ("v6e", "4x4"), ("v6e", "16x16"), ("v7", "2x2x1"), ("v7", "4x4x4"),
]  # fmt: skip


def shape_of(**sizes: int) -> tuple[int, ...]:
    """A mesh shape by axis; what is not named is 1."""
    return tuple(sizes.get(axis, 1) for axis in AXES)


def of_axis(mean_hops: tuple[float, ...], axis: str) -> float:
    """The mean hops along a named axis."""
    return mean_hops[AXES.index(axis)]


def wrap_of(accelerator: str, name: str) -> tuple[int, ...]:
    """Rings of a slice's torus, from the catalogue."""
    edge = CHIPS[accelerator].torus_edge
    sizes = [*map(int, name.split("x")), 1][:3]
    return tuple(size if size % edge == 0 else 0 for size in sizes)


@pytest.mark.parametrize(("accelerator", "name"), SLICES)
def test_tensor_axis_runs_over_neighbours(accelerator: str, name: str) -> None:
    """Every tensor size puts each device's successor at most one link away, and uses all once."""
    _, devices = slices(accelerator, name)
    for tensor in (2, 4):
        if len(devices) % tensor:
            continue
        mesh = topology.layout(shape_of(fsdp=len(devices) // tensor, tensor=tensor), devices)
        assert {d.id for d in mesh.flat} == {d.id for d in devices}
        places = np.array([d.coords for d in mesh.flat]).reshape(-1, tensor, 3)
        apart = np.abs(np.diff(places, axis=1)).sum(axis=-1)
        ring = wrap_of(accelerator, name)
        # Four devices of a 2x2 square may be in rows: one step of two is then a diagonal.
        assert apart.max() <= 2
        assert of_axis(topology.hops(mesh, ring), "tensor") <= 1.5


@pytest.mark.parametrize(
    ("accelerator", "name", "fsdp", "tensor"),
    [
        ("v4", "4x4x4", 16, 4),
        ("v5e", "16x16", 16, 16),
        ("v5p", "4x4x8", 32, 4),
        ("v5p", "4x4x8", 16, 8),
        ("v6e", "16x16", 16, 16),
        ("v5p", "2x2x1", 2, 2),
        ("v5e", "2x2", 2, 2),
        ("v5e", "2x4", 4, 2),
    ],
)
def test_an_axis_that_fills_a_ring_is_a_ring(
    accelerator: str, name: str, fsdp: int, tensor: int
) -> None:
    """Where the tensor axis is as long as a torus axis, every step is one link, the last too."""
    _, devices = slices(accelerator, name)
    mesh = topology.layout(shape_of(fsdp=fsdp, tensor=tensor), devices)
    mean_hops = topology.hops(mesh, wrap_of(accelerator, name))
    assert of_axis(mean_hops, "tensor") == 1.0
    assert of_axis(mean_hops, "fsdp") <= 1.5


def test_wrap_around_counts_only_where_it_is() -> None:
    """The ends of a line are far apart, the ends of a ring are neighbours."""
    _, devices = slices("v5e", "4x4")
    mesh = topology.layout(shape_of(fsdp=4, tensor=4), devices)
    assert of_axis(topology.hops(mesh, (0, 0, 0)), "tensor") == (1 + 1 + 1 + 3) / 4
    assert of_axis(topology.hops(mesh, (4, 4, 0)), "tensor") == 1.0


@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        (2, {"slice": 2, "fsdp": 8, "tensor": 2}),
        (2, {"slice": 4, "fsdp": 4, "tensor": 2}),
        (2, {"slice": 1, "fsdp": 16, "tensor": 2}),
        (4, {"slice": 2, "fsdp": 32}),
    ],
)
def test_slices_are_apart(count: int, sizes: dict[str, int]) -> None:
    """What lies within a slice never leaves it: only slice, or the outer part of fsdp, crosses."""
    _, devices = slices("v6e", "4x4", count)
    mesh = topology.layout(shape_of(**sizes), devices)
    assert mesh.size == len({d.id for d in mesh.flat}) == math.prod(sizes.values())
    index = np.vectorize(lambda d: d.slice_index)(mesh)
    blocks = index.reshape(count, -1)
    assert (blocks == blocks[:, :1]).all(), "slices are mixed"
    assert sorted(blocks[:, 0]) == list(range(count))


def test_slices_that_do_not_divide_are_refused() -> None:
    """A slice axis of 3 over 2 slices is an error that says what to take."""
    _, devices = slices("v6e", "4x4", 2)
    with pytest.raises(ShardingError, match=r"mesh\.slice 3 cannot be laid over 2 slices: take 2"):
        topology.layout(shape_of(slice=3, fsdp=32), devices)


def test_other_devices_keep_their_order() -> None:
    """CPU and GPU devices are in the order of processes, which is the order of the network."""
    mesh = topology.make_mesh(dict.fromkeys(AXES, 1) | {"fsdp": 4, "tensor": 2}, jax.devices()[:8])
    assert [d.id for d in mesh.devices.flat] == [d.id for d in jax.devices()[:8]]
