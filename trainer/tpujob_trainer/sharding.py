"""One table says over which mesh axes each named dimension is split.

Mesh axes: ``slice`` is data parallelism over the data-centre network, ``fsdp``
splits batch and weights over the chips of a slice, ``tensor`` splits heads and
hidden units over neighbouring chips.
"""

from __future__ import annotations

import dataclasses
import math

from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from tpujob_trainer.config import REST, MeshConfig, TrainerConfig

AXES = ("slice", "fsdp", "tensor")

#: Logical dimension → mesh axes. ``None`` dimensions of an array are replicated.
RULES: dict[str, tuple[str, ...]] = {
    "batch": ("slice", "fsdp"),
    "embed": ("fsdp",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "ff": ("tensor",),
    "vocab": ("tensor",),
}


class ShardingError(ValueError):
    """Sizes and devices that do not fit together."""


@dataclasses.dataclass(frozen=True, slots=True)
class Dimension:
    """A size that a mesh has to divide, and the field that sets it."""

    field: str
    size: int
    logical: str


def spec(*logical: str | None) -> PartitionSpec:
    """The partition of an array from the names of its dimensions.

    Raises:
        ShardingError: two dimensions would be split over the same mesh axis.
    """
    parts = [RULES[name] if name else () for name in logical]
    used = [axis for part in parts for axis in part]
    twice = sorted({axis for axis in used if used.count(axis) > 1})
    if twice:
        raise ShardingError(f"dimensions {logical} collide on mesh axis {', '.join(twice)}")
    return PartitionSpec(*(part if len(part) > 1 else (part or (None,))[0] for part in parts))


def named(mesh: Mesh, *logical: str | None) -> NamedSharding:
    """The sharding on ``mesh`` of an array from the names of its dimensions."""
    return NamedSharding(mesh, spec(*logical))


def copies(split: PartitionSpec, mesh: Mesh | AbstractMesh) -> int:
    """How many devices hold the same block of an array that is split like this."""
    if mesh.empty:
        return 1
    parts = [part if isinstance(part, tuple) else (part,) for part in split if part]
    split_over = math.prod(mesh.shape[axis] for part in parts for axis in part)
    return int(mesh.size // split_over)


def axis_sizes(config: MeshConfig, *, devices: int, slices: int) -> dict[str, int]:
    """Devices along each axis, with ``-1`` filled in.

    Args:
        config: the mesh as asked for; a slice axis of 0 means one per TPU slice.
        devices: number of devices in the world.
        slices: number of TPU slices in the world.

    Raises:
        ShardingError: the product is not the number of devices; says what would be.
    """
    sizes = {"slice": config.slice or slices, "fsdp": config.fsdp, "tensor": config.tensor}
    fixed = math.prod(size for size in sizes.values() if size != REST)
    rest = [name for name, size in sizes.items() if size == REST]
    if devices % fixed or (not rest and fixed != devices):
        shown = " x ".join(f"{name} {size}" for name, size in sizes.items())
        raise ShardingError(f"mesh {shown} does not fit {devices} devices; {_fits(sizes, devices)}")
    return {name: devices // fixed if size == REST else size for name, size in sizes.items()}


def _fits(sizes: dict[str, int], devices: int) -> str:
    divisors = [d for d in range(1, devices + 1) if devices % d == 0]
    slice_size = sizes["slice"] if sizes["slice"] in divisors else 1
    left = devices // slice_size
    pairs = [f"{left // d}x{d}" for d in divisors if left % d == 0]
    return f"with slice {slice_size}, fsdp x tensor can be {', '.join(pairs)}"


def check_divides(config: TrainerConfig, sizes: dict[str, int]) -> None:
    """Every split dimension must be a multiple of its mesh axes.

    Raises:
        ShardingError: one line per field that does not divide, with the sizes that would.
    """
    model = config.model
    dimensions = (
        Dimension("globalBatch", config.global_batch, "batch"),
        Dimension("model.dModel", model.d_model, "embed"),
        Dimension("model.heads", model.heads, "heads"),
        Dimension("model.kvHeads", model.kv_heads, "kv_heads"),
        Dimension("model.dFF", model.d_ff, "ff"),
        Dimension("model.vocab", model.vocab, "vocab"),
    )
    faults = [fault for d in dimensions if (fault := _fault(d, sizes))]
    if faults:
        raise ShardingError("sizes and mesh do not fit:" + "".join(f"\n  - {f}" for f in faults))


def _fault(dimension: Dimension, sizes: dict[str, int]) -> str:
    axes = RULES[dimension.logical]
    parts = math.prod(sizes[axis] for axis in axes)
    if dimension.size % parts == 0:
        return ""
    below = dimension.size // parts * parts
    valid = " or ".join(str(v) for v in (below, below + parts) if v)
    over = " x ".join(f"{axis} {sizes[axis]}" for axis in axes)
    good = [d for d in range(1, dimension.size + 1) if dimension.size % d == 0]
    shown = ", ".join(map(str, good if len(good) <= 12 else [*good[:11], "…"]))
    return (
        f"{dimension.field} {dimension.size} cannot be split over {over} = {parts}: "
        f"take {dimension.field} {valid}, or split it over one of {shown}"
    )
