"""Which device goes where in the mesh, so that axes that talk most run between neighbours."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from tpujob_tpu.chips import BY_DEVICE_KIND
from tpujob_trainer import sharding
from tpujob_trainer.config import TrainerConfig
from tpujob_trainer.sharding import AXES, ShardingError

Devices = np.ndarray[Any, Any]  # of jax.Device, one dimension for each mesh axis


def mesh_of(config: TrainerConfig, devices: Sequence[jax.Device], slices: int) -> Mesh:
    """The mesh of the configuration on all devices of so many slices.

    Raises:
        ShardingError: sizes and devices do not fit together.
    """
    sizes = sharding.axis_sizes(config.mesh, devices=len(devices), slices=slices)
    for length in config.lengths:
        sharding.check_divides(config.at_length(length), sizes)
    return make_mesh(sizes, devices)


def make_mesh(sizes: dict[str, int], devices: Sequence[jax.Device]) -> Mesh:
    """A mesh whose slice axis runs over slices and whose last axes are neighbours.

    Raises:
        ShardingError: the slices cannot be told apart along the slice axis.
    """
    shape = tuple(sizes[axis] for axis in AXES)
    return Mesh(layout(shape, devices), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def layout(shape: tuple[int, ...], devices: Sequence[jax.Device]) -> Devices:
    """Devices in the mesh's shape; axes of ``shape`` are ordered from the slowest network on.

    Raises:
        ShardingError: the first two axes cannot be divided among the slices.
    """
    if devices[0].platform != "tpu":
        # jax.devices() is ordered by process, and processes by slice and host.
        return np.asarray(devices).reshape(shape)
    slices = _by_slice(devices)
    over_slices, within = _split(shape, len(slices))
    blocks = np.stack([_layout_of_slice(within, members) for members in slices])
    blocks = blocks.reshape(*over_slices, *within)
    # (slices of axis 0, slices of axis 1, axis 0, axis 1, …) → each slice's part outside its axis.
    order = (0, 2, 1, 3, *range(4, blocks.ndim))
    return blocks.transpose(order).reshape(shape)


def _by_slice(devices: Sequence[jax.Device]) -> list[list[jax.Device]]:
    by_slice: dict[int, list[jax.Device]] = {}
    for device in devices:
        by_slice.setdefault(getattr(device, "slice_index", 0) or 0, []).append(device)
    return [by_slice[index] for index in sorted(by_slice)]


def _split(shape: tuple[int, ...], slices: int) -> tuple[tuple[int, int], tuple[int, ...]]:
    """How the first two axes are divided among slices, and the shape left to each slice."""
    first, second, *rest = shape
    if first % slices == 0:
        return (slices, 1), (first // slices, second, *rest)
    share = slices // first
    if slices % first == 0 and second % share == 0:
        return (first, share), (1, second // share, *rest)
    raise ShardingError(
        f"mesh.{AXES[0]} {first} cannot be laid over {slices} slices: take {slices}, or 0 for that"
    )


def within_slice(mesh: Devices, slices: int) -> Devices:
    """The first slice's part of a mesh, with as many axes; axes between slices are shorter."""
    over_slices, within = _split(mesh.shape, slices)
    first, second = (slice(0, n // k) for n, k in zip(mesh.shape, over_slices, strict=False))
    return mesh[first, second].reshape(within)


def _layout_of_slice(shape: tuple[int, ...], devices: Sequence[jax.Device]) -> Devices:
    """The layout, of all that are tried, with the fewest hops, the last axis counting most."""
    if len(devices) == 1:
        return np.asarray(devices).reshape(shape)
    candidates = [*_of_jax(shape, devices), *_of_coordinates(shape, devices)]
    wrap = wrapping(devices)
    return min(candidates, key=lambda mesh: hops(mesh, wrap)[::-1])


def _of_jax(shape: tuple[int, ...], devices: Sequence[jax.Device]) -> Iterator[Devices]:
    """JAX's own layout: it knows the rings of small slices, but not every shape."""
    from jax.experimental import mesh_utils  # noqa: PLC0415 - 30 ms that only TPUs need

    try:
        yield mesh_utils.create_device_mesh(shape, devices=devices, allow_split_physical_axes=True)
    except (NotImplementedError, ValueError):
        return


def _of_coordinates(shape: tuple[int, ...], devices: Sequence[jax.Device]) -> Iterator[Devices]:
    """Row by row through the torus, for each order of its axes."""
    rows = places(devices)
    for order in itertools.permutations(range(rows.shape[1])):
        ranks = np.lexsort([rows[:, axis] for axis in reversed(order)])
        yield np.asarray(devices)[ranks].reshape(shape)


def places(devices: Sequence[jax.Device]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Coordinates x, y, z and the core on its chip, one row for each device."""
    return np.array([(*d.coords, getattr(d, "core_on_chip", 0)) for d in devices])


def wrapping(devices: Sequence[jax.Device]) -> tuple[int, ...]:
    """Length of the ring of each torus axis, 0 where it is a line."""
    edge = BY_DEVICE_KIND[devices[0].device_kind].torus_edge
    extent = places(devices)[:, :3].max(axis=0) + 1
    return tuple(int(size) if size % edge == 0 else 0 for size in extent)


def hops(mesh: Devices, wrap: Sequence[int]) -> tuple[float, ...]:
    """Mean number of links between neighbours along each axis, its closing step included.

    Args:
        mesh: devices of one slice.
        wrap: length of the ring of each torus axis, 0 where it is a line.
    """
    at = places(list(mesh.flat))[:, :3].reshape(*mesh.shape, 3)
    means = []
    for axis in range(mesh.ndim):
        apart = np.abs(at - np.roll(at, -1, axis=axis))
        ring = np.array([size or np.iinfo(np.int64).max for size in wrap])
        means.append(float(np.minimum(apart, ring - apart).sum(axis=-1).mean()))
    return tuple(means)
