"""One table says over which mesh axes each named dimension is split.

Mesh axes: ``slice`` is data parallelism over the data-centre network, ``fsdp``
splits batch and weights over the chips of a slice, ``context`` splits each row
along its length, ``tensor`` splits heads and hidden units over neighbouring chips.
"""

from __future__ import annotations

import dataclasses
import math

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from tpujob_trainer.config import REST, MeshConfig, TrainerConfig

AXES = ("slice", "fsdp", "context", "tensor")  # the last one over the fastest links

#: Logical dimension → mesh axes. ``None`` dimensions of an array are replicated.
RULES: dict[str, tuple[str, ...]] = {
    "batch": ("slice", "fsdp"),
    "length": ("context",),
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


def constrain(x: jax.Array, *logical: str | None) -> jax.Array:
    """``x``, split over the mesh of the program being traced; unchanged without a mesh."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    constrained: jax.Array = jax.lax.with_sharding_constraint(x, spec(*logical))
    return constrained


def platform() -> str:
    """``tpu``, ``gpu`` or ``cpu``: where the program being traced will run.

    That is the platform of the mesh's devices: a program for TPUs may be compiled on a
    machine without any.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return str(device.platform if device else jax.default_backend())


def parts(*logical: str) -> int:
    """Into how many blocks an array with these dimensions is split."""
    mesh = jax.sharding.get_abstract_mesh()
    return math.prod(mesh.shape.get(axis, 1) for name in logical for axis in RULES[name])


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
    sizes = {**{axis: getattr(config, axis) for axis in AXES}, "slice": config.slice or slices}
    fixed = math.prod(size for size in sizes.values() if size != REST)
    rest = [name for name, size in sizes.items() if size == REST]
    if devices % fixed or (not rest and fixed != devices):
        shown = " x ".join(f"{name} {size}" for name, size in sizes.items())
        raise ShardingError(f"mesh {shown} does not fit {devices} devices; {_fits(sizes, devices)}")
    return {name: devices // fixed if size == REST else size for name, size in sizes.items()}


def _fits(sizes: dict[str, int], devices: int) -> str:
    slice_size, context = sizes["slice"], sizes["context"]
    if slice_size < 1 or devices % slice_size:
        slice_size = 1
    if context < 1 or devices // slice_size % context:
        context = 1
    left = devices // slice_size // context
    pairs = [f"{left // d}x{d}" for d in range(1, left + 1) if left % d == 0]
    fixed = f"slice {slice_size}" + (f", context {context}" if context > 1 else "")
    return f"with {fixed}, fsdp x tensor can be {', '.join(pairs)}"


def check_divides(config: TrainerConfig, sizes: dict[str, int]) -> None:
    """Every split dimension must be a multiple of its mesh axes.

    Raises:
        ShardingError: one line per field that does not divide, with the sizes that would.
    """
    model = config.model
    micro = "" if config.accumulation == 1 else " / accumulation"
    dimensions = (
        Dimension(f"globalBatch{micro}", config.global_batch // config.accumulation, "batch"),
        Dimension("sequenceLength", config.sequence_length, "length"),
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
