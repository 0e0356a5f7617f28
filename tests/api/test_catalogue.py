"""The TPU catalogue: facts are consistent, and what does not exist is refused with advice."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpujob_tpu.catalogue import (
    USABLE,
    UnknownSliceError,
    has_topology,
    nearest_topologies,
    slice_shape,
)
from tpujob_tpu.generations import GENERATIONS, Availability, Generation


@pytest.mark.parametrize(
    ("slice_name", "size", "label", "kind"),
    [
        ("v3 2x2", (4, 1), "tpu-v3-device", "v3-8"),
        ("v3 4x4", (16, 4), "tpu-v3-slice", "v3-32"),
        ("v4 2x2x4", (16, 4), "tpu-v4-podslice", "v4-32"),
        ("v4 12x16x20", (3840, 960), "tpu-v4-podslice", "v4-7680"),
        ("v5e 1x1", (1, 1), "tpu-v5-lite-podslice", "v5litepod-1"),
        ("v5e 2x4", (8, 2), "tpu-v5-lite-podslice", "v5litepod-8"),
        ("v5e 16x16", (256, 64), "tpu-v5-lite-podslice", "v5litepod-256"),
        ("v5p 4x4x4", (64, 16), "tpu-v5p-slice", "v5p-128"),
        ("v5p 4x4x100", (1600, 400), "tpu-v5p-slice", "v5p-3200"),
        ("v6e 4x8", (32, 8), "tpu-v6e-slice", "v6e-32"),
        ("v7 1x1x1", (1, 1), "tpu7x", "tpu7x-2"),
        ("v7 16x24x24", (9216, 2304), "tpu7x", "tpu7x-18432"),
    ],
)
def test_shape(slice_name: str, size: tuple[int, int], label: str, kind: str) -> None:
    """Chips, hosts, node label and type name of a slice are what GKE and libtpu call them."""
    accelerator, topology = slice_name.split()
    shape = slice_shape(accelerator, topology)
    assert (shape.chips, shape.hosts) == size
    assert (shape.gke_accelerator, shape.accelerator_type) == (label, kind)
    assert shape.node_selector == {
        "cloud.google.com/gke-tpu-accelerator": label,
        "cloud.google.com/gke-tpu-topology": topology,
    }


@pytest.mark.parametrize("generation", USABLE, ids=lambda g: g.name)
def test_listed_topologies_are_real(generation: Generation) -> None:
    """Every listed topology divides into hosts, and the list ascends."""
    shapes = [slice_shape(generation.name, t) for t in generation.topologies]
    assert all(shape.hosts * shape.chips_per_host == shape.chips for shape in shapes)
    assert [s.chips for s in shapes] == sorted(s.chips for s in shapes)


@pytest.mark.parametrize(
    ("accelerator", "topology", "words"),
    [
        ("v5e", "3x5", "15 chips do not divide into hosts of 4"),
        ("v5e", "3x5", "nearest are 2x2, 2x4, 4x4, 4x8"),
        ("v4", "4x8x4", "nearest are 4x4x4, 4x4x8"),
        ("v4", "16x16x20", "nearest are 12x16x16, 16x16x16"),
        ("v5e", "4x4x4", "v5e has no topology 4x4x4"),
        ("v5e", "big", "not of the form 4x4"),
        ("v5e", "0x4", "not of the form 4x4"),
        ("v5", "4x4", "nearest is v5"),
        ("v2", "4x4", "not offered by GKE"),
        ("v8t", "4x4", "announced"),
    ],
)
def test_unknown_slices_are_refused(accelerator: str, topology: str, words: str) -> None:
    """What does not exist is refused with a message that names what does."""
    with pytest.raises(UnknownSliceError) as refused:
        slice_shape(accelerator, topology)
    assert words in str(refused.value)


def test_every_generation_is_told_apart() -> None:
    """Generations that cannot be had have no labels; all others have everything."""
    for generation in GENERATIONS:
        is_usable = generation.availability is Availability.GKE
        assert is_usable == bool(generation.gke_label) == bool(generation.topologies)


@given(
    st.sampled_from(USABLE),
    st.lists(st.integers(min_value=1, max_value=64), min_size=2, max_size=3),
)
def test_any_topology_is_accepted_or_explained(generation: Generation, sizes: list[int]) -> None:
    """Any topology either has a whole number of hosts or is refused by name, with neighbours."""
    topology = "x".join(map(str, sizes))
    if has_topology(generation, topology):
        shape = slice_shape(generation.name, topology)
        assert shape.hosts * shape.chips_per_host == math.prod(sizes)
        return
    with pytest.raises(UnknownSliceError, match=topology):
        slice_shape(generation.name, topology)
    assert 1 <= len(nearest_topologies(generation, math.prod(sizes))) <= 4
