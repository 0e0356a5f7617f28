"""Collectives are read from HLO in every form, counted as often as they run, put to their axes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpujob_ahead.collectives import Collective, by_axes, collectives, device_groups

HLO = """HloModule jit_step, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%all-reduce-scatter.1 (input: bf16[64,128]) -> bf16[16,128] {
  %input = bf16[64,128]{1,0} parameter(0)
  %all-reduce.1 = bf16[64,128]{1,0} all-reduce(%input), replica_groups=[2,4]<=[4,2]T(1,0), to_apply=%add
  ROOT %slice = bf16[16,128]{1,0} dynamic-slice(%all-reduce.1), dynamic_slice_sizes={16,128}
}

%body (state: (s32[], f32[256])) -> (s32[], f32[256]) {
  %state = (s32[], f32[256]{0}) parameter(0)
  %part = f32[256]{0:T(256)S(1)} get-tuple-element(%state), index=1
  %all-reduce-start = f32[256]{0} all-reduce-start(%part), replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add
  %all-reduce-done = f32[256]{0} all-reduce-done(%all-reduce-start)
  ROOT %next = (s32[], f32[256]{0}) tuple(%all-reduce-done)
}

%condition (state: (s32[], f32[256])) -> pred[] {
  %state = (s32[], f32[256]{0}) parameter(0)
  ROOT %goes-on = pred[] compare(%state, %state), direction=LT
}

ENTRY %main (weights: bf16[4,128], grads: bf16[64,128]) -> bf16[16,128] {
  %weights = bf16[4,128]{1,0} parameter(0)
  %grads = bf16[64,128]{1,0} parameter(1)
  %start = ((bf16[4,128]{1,0}), bf16[16,128]{1,0}) all-gather-start(%weights), replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}, dimensions={0}
  %done = bf16[16,128]{1,0} all-gather-done(%start)
  %permute = bf16[4,128]{1,0} collective-permute(%weights), source_target_pairs={{0,2},{2,4},{4,6},{6,0}}
  %loop = (s32[], f32[256]{0}) while(%init), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %send = (bf16[16,128]{1,0}, u32[], token[]) send(%done, %token), is_host_transfer=true, frontend_attributes={_xla_megascale_reduce_operation="SUM",_xla_megascale_target="{1,2}x{0:7}",_xla_megascale_transfer_type="ALL_REDUCE"}
  %alone = f32[8]{0} all-reduce(%done), replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}, to_apply=%add
  ROOT %scatter = bf16[16,128]{1,0} fusion(%grads), kind=kCustom, calls=%all-reduce-scatter.1
}
"""  # noqa: E501 - the lines of a compiler


NOTED = 'backend_config={"known_trip_count":{"n":"3"}}'


@pytest.mark.parametrize("turns", ["noted", "compared"])
def test_every_kind_is_found_with_its_axes_and_bytes(turns: str) -> None:
    """Loops count each turn, fused scatters and transfers between slices are recognised."""
    compared = "parameter(0)\n  %limit = s32[]{:T(128)} constant(3)\n  ROOT %goes-on"
    text = HLO.replace(NOTED, "metadata={}").replace("parameter(0)\n  ROOT %goes-on", compared)
    found = collectives(HLO if turns == "noted" else text)
    table = {(axes, kind): (sent, count) for axes, kind, sent, count in by_axes(found, MESH)}
    assert table == {
        (("fsdp",), "all-gather"): (16 * 128 * 2 * 3 / 4, 1),
        (("fsdp",), "reduce-scatter"): (64 * 128 * 2 * 3 / 4, 1),
        (("fsdp",), "collective-permute"): (4 * 128 * 2, 1),
        (("tensor",), "all-reduce"): (3 * 256 * 4 * 2 / 2, 3),
        (("slice",), "all-reduce"): (16 * 128 * 2, 1),
    }


MESH = {"slice": 1, "fsdp": 4, "tensor": 2}


@given(
    st.lists(st.integers(min_value=1, max_value=4), min_size=1, max_size=4).flatmap(
        lambda sizes: st.tuples(
            st.just(sizes), st.sets(st.integers(min_value=0, max_value=len(sizes) - 1), min_size=1)
        )
    )
)
def test_all_forms_of_groups_mean_the_same(case: tuple[list[int], set[int]]) -> None:
    """A list, an iota and axes of a mesh that describe the same groups are read alike."""
    sizes, moving = case
    order = [*(a for a in range(len(sizes)) if a not in moving), *sorted(moving)]
    width = math.prod(sizes[a] for a in moving)
    ids = np.arange(math.prod(sizes)).reshape(sizes).transpose(order).reshape(-1, width)
    listed = ",".join("{" + ",".join(map(str, row)) + "}" for row in ids)
    shape, turned = ",".join(map(str, sizes)), ",".join(map(str, order))
    axes = ",".join(f"'a{i}'={size}" for i, size in enumerate(sizes))
    across = ",".join(f"'a{i}'" for i in sorted(moving))
    forms = [
        f"replica_groups={{{listed}}}, dimensions={{0}}",
        f"replica_groups=[{len(ids)},{width}]<=[{shape}]T({turned})",
        f"replica_groups=mesh[{axes}] {{{across}}}",
    ]
    expected = [tuple(row) for row in ids.tolist()]
    assert [device_groups(form) for form in forms] == [expected] * 3


def test_a_part_of_an_axis_is_understood() -> None:
    """Shardy may split an axis: the inner half of eight groups neighbours."""
    groups = device_groups("replica_groups=mesh['a'=8] {'a':(2)4}")
    assert groups == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert device_groups("replica_groups=mesh['a'=8] {'a':(1)2}") == [
        (0, 4),
        (1, 5),
        (2, 6),
        (3, 7),
    ]


def test_devices_of_a_mesh_may_be_in_any_order() -> None:
    """The mesh may say itself which partition is where, as an iota or one by one."""
    turned = "replica_groups=mesh['a'=2,'b'=1,'c'=4], device_ids=([4,2]T(1,0)) {'a'}, to_apply=%x"
    assert device_groups(turned) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    listed = "replica_groups=mesh['a'=2,'b'=2], device_ids=(0,1,3,2) {'b'}"
    assert device_groups(listed) == [(0, 1), (3, 2)]


@pytest.mark.parametrize(
    "attributes",
    ["dimensions={0}", "replica_groups=mesh['a'=2], device_ids=(something) {'a'}"],
)
def test_an_unknown_form_is_an_error(attributes: str) -> None:
    """Bytes that cannot be put to an axis are never dropped in silence."""
    with pytest.raises(ValueError, match="unknown"):
        device_groups(attributes)


def test_a_permute_belongs_to_its_whole_ring() -> None:
    """The pairs of a ring are one group, which has all links of the ring."""
    (permute,) = [one for one in collectives(HLO) if one.kind == "collective-permute"]
    assert sorted(permute.group) == [0, 2, 4, 6]


def test_groups_over_two_axes_name_both() -> None:
    """A group that moves along two axes belongs to both."""
    one = Collective("all-reduce", tuple(range(8)), 8, 8, 1)
    assert one.axes(MESH) == ("fsdp", "tensor")
