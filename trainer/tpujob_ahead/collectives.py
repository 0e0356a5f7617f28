"""What a compiled step sends between chips: collectives, read from the optimised HLO.

Groups of devices come as lists ``{{0,1},{2,3}}``, as an iota ``[2,4]<=[4,2]T(1,0)`` or as
axes of a mesh ``mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}``. Between slices the TPU
compiler makes host transfers of its multi-slice runtime out of them, which name their kind.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

#: Kinds whose ``-start`` form carries the operands; ``-done`` is not counted.
KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

_ELEMENT_BITS = {"pred": 8, "bf16": 16, "f8e4m3fn": 8, "f8e5m2": 8}
_ARRAY = re.compile(r"\b(pred|bf16|[suf]\d+|f8e\w+)\[([\d,]*)\]")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?)\s([a-z][a-z\-]*)\((.*?)\)(.*)$")
_CALLED = re.compile(
    r"(body|condition|calls|to_apply|branch_computations)=\{?((?:%[\w.\-]+(?:, )?)+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{} ]*\})\}")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((.*?)\))? \{([^}]*)\}")
_ORDER = re.compile(r"^(?:\[([\d,]+)\](?:T\(([\d,]+)\)?)?|([\d,]+))$")
_SLICES = re.compile(r'_xla_megascale_target="\{([\d,]*)\}')
_TRANSFER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')


@dataclasses.dataclass(frozen=True, slots=True)
class Collective:
    """Equal collectives of one step, as one device sees them.

    Attributes:
        kind: One of ``KINDS``.
        group: Partitions that exchange; empty for a transfer between slices.
        size: Devices, or slices, that take part.
        bytes: Of the whole array: gathered, to be reduced, or passed on.
        count: How often in a step.
        is_between_slices: Whether it goes over the data-centre network.
    """

    kind: str
    group: tuple[int, ...]
    size: int
    bytes: int
    count: int
    is_between_slices: bool = False

    @property
    def sent_bytes(self) -> float:
        """Least bytes that a device has to send, or receive, in a step."""
        share = (self.size - 1) / self.size
        factor = {"all-reduce": 2 * share, "collective-permute": 1.0}.get(self.kind, share)
        return self.count * self.bytes * factor

    def axes(self, shape: Mapping[str, int]) -> tuple[str, ...]:
        """The axes of a slice's mesh that the group runs over."""
        if self.is_between_slices:
            return ("slice",)
        places = np.array(np.unravel_index(self.group, tuple(shape.values())))
        moves = places.max(axis=1) > places.min(axis=1)
        return tuple(axis for axis, is_moving in zip(shape, moves, strict=True) if is_moving)


@dataclasses.dataclass(frozen=True, slots=True)
class _Instruction:
    result: str  # its type
    opcode: str
    operands: str
    attributes: str


def collectives(hlo: str) -> list[Collective]:
    """All collectives of a compiled module, loops counted as often as they run.

    Args:
        hlo: text of the optimised module.
    """
    computations, entry = _computations(hlo)
    counts = _runs(computations, entry)
    found: collections.Counter[Collective] = collections.Counter()
    for name, instructions in computations.items():
        types = {i: instruction.result for i, instruction in instructions.items()}
        for instruction in instructions.values():
            one = _collective(instruction, types, is_scatter="reduce-scatter" in name)
            if one and one.size > 1 and counts[name]:
                found[one] += counts[name]
    return [dataclasses.replace(one, count=count) for one, count in found.items()]


def _computations(hlo: str) -> tuple[dict[str, dict[str, _Instruction]], str]:
    """Instructions by name, by computation; and the entry's name."""
    computations: dict[str, dict[str, _Instruction]] = {}
    current, entry = "", ""
    for line in hlo.splitlines():
        if header := _HEADER.match(line):
            current = header[2]
            computations[current] = {}
            entry = current if header[1] else entry
        elif current and (found := _INSTRUCTION.match(line)):
            computations[current][found[1]] = _Instruction(*found.groups()[1:])
    return computations, entry


def _runs(computations: dict[str, dict[str, _Instruction]], entry: str) -> dict[str, int]:
    """How often each computation runs in a step; loops of unknown length count once."""
    runs = dict.fromkeys(computations, 0)
    # HLO text lists a computation before its callers, so that callers are done first here.
    runs[entry] = 1
    for name in reversed(computations):
        for instruction in computations[name].values():
            called = dict(_CALLED.findall(instruction.attributes))
            trips = _trips(instruction, called, computations)
            for role, callees in called.items():
                for callee in _names(callees):
                    runs[callee] += runs[name] * (trips if role == "body" else 1)
    return runs


def _trips(
    instruction: _Instruction,
    called: dict[str, str],
    computations: dict[str, dict[str, _Instruction]],
) -> int:
    """Turns of a loop: as the compiler notes it, or what its condition compares with."""
    if instruction.opcode != "while":
        return 1
    if noted := _TRIPS.search(instruction.attributes):
        return int(noted[1])
    (condition,) = _names(called["condition"])
    limits = [
        int(limit.operands)
        for limit in computations[condition].values()
        if limit.opcode == "constant" and limit.result.startswith("s32[]")
    ]
    return max(limits, default=1)


def _collective(
    instruction: _Instruction, types: dict[str, str], *, is_scatter: bool
) -> Collective | None:
    if instruction.opcode == "send" and (transfer := _TRANSFER.search(instruction.attributes)):
        return _between_slices(instruction, transfer[1])
    kind = instruction.opcode.removesuffix("-start")
    if kind not in KINDS or instruction.opcode.endswith("-done"):
        return None
    operands = _names(instruction.operands)
    size_bytes = sum(_bytes(types.get(operand, "")) for operand in operands)
    groups = device_groups(instruction.attributes)
    group = next((g for g in groups if len(g) > 1), ())
    if kind == "collective-permute":
        group = _ring(groups)
    if kind == "all-gather":
        size_bytes *= len(group)
    if kind == "all-reduce" and is_scatter:  # how TPUs do it: both in one fusion
        kind = "reduce-scatter"
    return Collective(kind, group, len(group), size_bytes, 1)


def _ring(pairs: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """All that the first source's data reaches: opposite rings share the links of their axis."""
    target = {pair[0]: pair[1] for pair in pairs}
    ring = dict.fromkeys(pairs[0][:1])
    while (following := target.get(next(reversed(ring)))) is not None and following not in ring:
        ring[following] = None
    return tuple(ring)


def _between_slices(instruction: _Instruction, transfer: str) -> Collective:
    slices = _SLICES.search(instruction.attributes)
    size = len(slices[1].split(",")) if slices else 2
    size_bytes = _bytes(instruction.result.split("u32[]")[0])
    kind = transfer.lower().replace("_", "-")
    if kind == "all-gather":
        size_bytes *= size
    return Collective(kind, (), size, size_bytes, 1, is_between_slices=True)


def _names(text: str) -> list[str]:
    return re.findall(r"%([\w.\-]+)", text)


def _bytes(kind: str) -> int:
    """Size of a type, tuples summed, in bytes."""
    return sum(
        math.prod(map(int, filter(None, dimensions.split(",")))) * _bits(element) // 8
        for element, dimensions in _ARRAY.findall(kind)
    )


def _bits(element: str) -> int:
    return _ELEMENT_BITS.get(element) or int(element[1:])


def device_groups(attributes: str) -> list[tuple[int, ...]]:
    """Partitions that exchange with each other; for permutes the pairs that do."""
    if listed := _LISTED.search(attributes):
        return [tuple(map(int, g.split(","))) for g in re.findall(r"\{([\d,]+)\}", listed[1])]
    if iota := _IOTA.search(attributes):
        return _rows(_iota(iota[3], iota[4]).reshape(int(iota[1]), int(iota[2])))
    if mesh := _MESH.search(attributes):
        return _groups_of_mesh(mesh[1], mesh[2], mesh[3])
    raise ValueError(f"unknown form of device groups: {attributes[:200]}")


def _groups_of_mesh(mesh: str, order: str | None, across: str) -> list[tuple[int, ...]]:
    """Groups of a mesh ``'a'=4,'b'=2`` across axes ``'b','a':(2)2``, the last a part of an axis."""
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh)}
    parts = {
        name: (int(before or 1), int(size or sizes[name]))
        for name, before, size in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", across)
    }
    shape: list[int] = []
    moving: list[int] = []
    for name, size in sizes.items():
        before, part = parts.get(name, (1, 1))
        moving += [len(shape) + 1] if name in parts else []
        shape += [before, part, size // before // part]
    resting = [axis for axis in range(len(shape)) if axis not in moving]
    ids = _order(order, math.prod(shape)).reshape(shape).transpose(*resting, *moving)
    return _rows(ids.reshape(-1, math.prod(shape[axis] for axis in moving)))


def _order(text: str | None, size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Partitions in the order of a mesh: ``[4,2]T(1,0)``, a list, or None for ascending."""
    if text is None:
        return np.arange(size)
    found = _ORDER.match(text)
    if not found:
        raise ValueError(f"unknown order of devices: {text}")
    return np.array(_numbers(found[3])) if found[3] else _iota(found[1], found[2])


def _iota(dimensions: str, order: str | None) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Ascending numbers in these dimensions, transposed."""
    sizes = _numbers(dimensions)
    ids = np.arange(math.prod(sizes)).reshape(sizes)
    return ids.transpose(_numbers(order)) if order else ids


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _rows(ids: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> list[tuple[int, ...]]:
    return [tuple(int(i) for i in row) for row in ids]


def by_axes(
    found: Sequence[Collective], shape: Mapping[str, int]
) -> Iterator[tuple[tuple[str, ...], str, float, int]]:
    """Sums over equal axes and kinds: axes, kind, bytes sent by a device, how many.

    Args:
        found: collectives of a step.
        shape: of the mesh within one slice, in the order of its axes.
    """
    sent: dict[tuple[tuple[str, ...], str], float] = collections.defaultdict(float)
    number: dict[tuple[tuple[str, ...], str], int] = collections.defaultdict(int)
    for one in found:
        key = (one.axes(shape), one.kind)
        sent[key] += one.sent_bytes
        number[key] += one.count
    for axes, kind in sorted(sent):
        yield axes, kind, sent[axes, kind], number[axes, kind]
