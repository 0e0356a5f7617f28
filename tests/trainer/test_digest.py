"""Digests see every change, and do not see how an array is split."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpujob_checkpoint.digest import changed, linear_index, make_shares, total
from tpujob_trainer import sharding, topology

SHAPE = (8, 6)
SPECS = [
    PartitionSpec(),
    PartitionSpec("fsdp"),
    PartitionSpec(("slice", "fsdp"), "tensor"),
    PartitionSpec(None, "tensor"),
]


def _mesh(shape: tuple[int, ...] = (2, 2, 1, 2)) -> Mesh:
    sizes = dict(zip(sharding.AXES, shape, strict=True))
    return topology.make_mesh(sizes, jax.devices()[: math.prod(shape)])


def _digest_of(abstract: jax.ShapeDtypeStruct, mesh: Mesh) -> Callable[[object], jax.Array]:
    shares = make_shares(abstract, mesh)
    return jax.jit(lambda tree: total(shares(tree)))


def _digest(values: np.ndarray[tuple[int, ...], np.dtype[np.float32]], split: PartitionSpec) -> int:
    named = NamedSharding(_mesh(), split)
    abstract = jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=named)
    digest = _digest_of(abstract, _mesh())
    return int(digest(jax.device_put(values, named))[0])


VALUES = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)


@pytest.mark.parametrize("split", SPECS)
def test_digest_does_not_depend_on_the_sharding(split: PartitionSpec) -> None:
    """The same array has the same digest however it is split over devices."""
    assert _digest(VALUES, split) == _digest(VALUES, PartitionSpec())


@pytest.fixture(scope="module")
def digest_of_one() -> object:
    """A compiled digest on a single device."""
    named = NamedSharding(_mesh((1, 1, 1, 1)), PartitionSpec())
    abstract = jax.ShapeDtypeStruct(SHAPE, np.uint32, sharding=named)
    return _digest_of(abstract, _mesh((1, 1, 1, 1)))


@settings(max_examples=200)
@given(element=st.integers(0, math.prod(SHAPE) - 1), bit=st.integers(0, 31))
def test_every_flipped_bit_is_seen(digest_of_one: object, element: int, bit: int) -> None:
    """A single flipped bit anywhere changes the digest, always."""
    assert callable(digest_of_one)
    bits = VALUES.view(np.uint32).copy()
    before = int(digest_of_one(bits)[0])
    bits.ravel()[element] ^= np.uint32(1 << bit)
    assert int(digest_of_one(bits)[0]) != before


def test_swapped_elements_are_seen() -> None:
    """A plain sum would not see two exchanged elements."""
    swapped = VALUES.copy()
    swapped[0, 0], swapped[3, 2] = VALUES[3, 2], VALUES[0, 0]
    assert _digest(swapped, SPECS[2]) != _digest(VALUES, SPECS[2])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32])
def test_all_types_of_a_state_have_digests(dtype: jnp.dtype) -> None:
    """Weights, half-precision values and counters are all covered."""
    mesh = _mesh((1, 2, 1, 1))
    named = NamedSharding(mesh, PartitionSpec("fsdp"))
    digest = _digest_of(jax.ShapeDtypeStruct((4,), dtype, sharding=named), mesh)
    one, two = (jax.device_put(jnp.asarray([1, 2, 3, n], dtype), named) for n in (4, 5))
    assert int(digest(one)[0]) != int(digest(two)[0])


def test_linear_index_numbers_the_whole_array() -> None:
    """Blocks number their elements as the whole array does."""
    whole = np.arange(48, dtype=np.uint32).reshape(8, 6)
    assert np.array_equal(linear_index((8, 6), (8, 6), [0, 0]), whole)
    assert np.array_equal(linear_index((2, 3), (8, 6), [4, 3]), whole[4:6, 3:6])


def test_changed_names_the_leaves() -> None:
    """The leaves that differ are named; of another number of leaves, all."""
    assert changed(["a", "b"], [1, 2], [1, 3]) == ["b"]
    assert changed(["a", "b"], [1, 2], [1, 2]) == []
    assert changed(["a", "b"], [1], [1, 2]) == ["a", "b"]
