"""One checksum per array: equal for every sharding, different when anything changes or moves.

Orbax loads flipped bits without an error and most of them stay finite, so that
only a checksum of our own tells a good checkpoint from a bad one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
_BITS = {8, 16, 32, 64}


def mix32(x: jax.Array) -> jax.Array:
    """The finalizer of MurmurHash3: a bijection of uint32 that spreads every bit."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def linear_index(
    shape: Sequence[int], full_shape: Sequence[int], offsets: Sequence[jax.Array | int]
) -> jax.Array:
    """Position of each element of a block within the whole array, modulo 2^32.

    Args:
        shape: shape of the block.
        full_shape: shape of the whole array.
        offsets: where the block starts along each dimension.
    """
    index = jnp.zeros(shape, jnp.uint32)
    for axis, offset in enumerate(offsets):
        stride = math.prod(full_shape[axis + 1 :]) % 2**32
        along = jax.lax.broadcasted_iota(jnp.uint32, shape, axis) + jnp.asarray(offset, jnp.uint32)
        index += along * jnp.uint32(stride)
    return index


def make_shares(abstract: Any, mesh: Mesh) -> Callable[[Any], jax.Array]:
    """A function from a tree like ``abstract`` to each device's share, uint32, devices x leaves.

    A leaf's digest is the sum over all elements of ``mix32(bits ^ mix32(index))``: a
    changed element always changes the sum, because ``mix32`` is a bijection, and swapped
    elements change it because the index is mixed in. Here is no collective: ``total`` sums up.
    """
    leaves = jax.tree.leaves(abstract)
    specs = [leaf.sharding.spec for leaf in leaves]

    def of_blocks(blocks: list[jax.Array]) -> jax.Array:
        parts = [
            _partial(block, leaf.shape, spec, mesh)
            for block, leaf, spec in zip(blocks, leaves, specs, strict=True)
        ]
        return jnp.stack(parts)[None]

    out = PartitionSpec(mesh.axis_names)
    mapped = jax.shard_map(of_blocks, mesh=mesh, in_specs=(specs,), out_specs=out)
    return lambda tree: mapped(jax.tree.leaves(tree))


def total(shares: jax.Array) -> jax.Array:
    """The digests of a tree from the shares of all devices, uint32, one per leaf."""
    return jnp.sum(shares, axis=0, dtype=jnp.uint32)


def _partial(
    block: jax.Array, full_shape: tuple[int, ...], spec: PartitionSpec, mesh: Mesh
) -> jax.Array:
    """This device's share of a leaf's digest; nothing from devices that hold a copy."""
    parts = [_axes(part) for part in tuple(spec) + (None,) * (block.ndim - len(spec))]
    offsets = [_position(axes, mesh) * size for axes, size in zip(parts, block.shape, strict=True)]
    index = linear_index(block.shape, full_shape, offsets)
    total = jnp.sum(mix32(_bits(block) ^ mix32(index)), dtype=jnp.uint32)
    split = {axis for axes in parts for axis in axes}
    copies = tuple(axis for axis in mesh.axis_names if axis not in split)
    return jnp.where(_position(copies, mesh) == 0, total, jnp.uint32(0))


def _axes(part: Any) -> tuple[str, ...]:
    if part is None:
        return ()
    return part if isinstance(part, tuple) else (part,)


def _position(axes: tuple[str, ...], mesh: Mesh) -> jax.Array:
    position = jnp.zeros((), jnp.int32)
    for axis in axes:
        position = position * mesh.shape[axis] + jax.lax.axis_index(axis)
    return position


def has_digest(dtype: Any) -> bool:
    """Whether arrays of this type have one: truth values, and numbers of 1, 2, 4 or 8 bytes."""
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).bits in _BITS  # type: ignore[no-untyped-call] # ships no types
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.finfo(dtype).bits in _BITS  # type: ignore[no-untyped-call] # as above
    return bool(dtype in (jnp.bool_, jnp.complex64))


def _bits(block: jax.Array) -> jax.Array:
    if block.dtype == jnp.bool_:
        return block.astype(jnp.uint32)
    if jnp.issubdtype(block.dtype, jnp.complexfloating):
        return _bits(block.real) ^ mix32(_bits(block.imag))
    if block.dtype.itemsize == 8:
        halves = jax.lax.bitcast_convert_type(block, jnp.uint32)
        return halves[..., 0] ^ mix32(halves[..., 1])
    unsigned = _UNSIGNED[block.dtype.itemsize]
    return jax.lax.bitcast_convert_type(block, unsigned).astype(jnp.uint32)


def changed(names: list[str], expected: Any, found: Any) -> list[str]:
    """Names of the leaves whose digests differ."""
    if len(expected) != len(found):
        return names
    return [n for n, e, f in zip(names, expected, found, strict=True) if int(e) != int(f)]
