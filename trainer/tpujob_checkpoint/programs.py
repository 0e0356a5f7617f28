"""What is computed of a state on the devices: its copy and its digests."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpujob_checkpoint import digest

State = Any  #: a tree of arrays that lie on one mesh
#: A pure function of trees, its arguments as shapes, and how its result is split.
Traceable = tuple[Callable[..., Any], tuple[Any, ...], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Programs:
    """The programs of one state, each made when it is asked for the first time.

    Attributes:
        state: the shapes, with shardings on one mesh.
        key: equal for starts that may load each other's snapshots; the state's own place and
            shapes need not be in it.
        copy: gives ``(state) -> state`` in memory of its own, on the devices.
        shares: gives ``(state) -> uint32 per device and leaf``; without a collective.
        digest: gives ``(shares) -> uint32 per leaf``.
    """

    state: State
    key: str
    copy: Callable[[], Callable[[State], State]]
    shares: Callable[[], Callable[[State], jax.Array]]
    digest: Callable[[], Callable[[jax.Array], jax.Array]]

    @classmethod
    def of(cls, state: State, key: str = "") -> Programs:
        """Programs that JAX compiles, for a state of arrays or of their shapes.

        Raises:
            ValueError: an array lies on no mesh or on another one, or is of a type without digest.
        """
        require_digestible(state)
        abstract = jax.tree.map(_abstract, state)
        return cls(
            abstract,
            f"{jax.__version__} {key}",
            copy=lambda: _compiled(copying(abstract)),
            shares=lambda: _compiled(sharing(abstract)),
            digest=lambda: _compiled(digesting(abstract)),
        )


def copying(abstract: State) -> Traceable:
    """``(state) -> state`` in memory of its own."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    return _copy, (abstract,), shardings


def sharing(abstract: State) -> Traceable:
    """``(state) -> shares``, see ``digest.make_shares``."""
    mesh = mesh_of(abstract)
    return digest.make_shares(abstract, mesh), (abstract,), _shares(abstract, mesh).sharding


def digesting(abstract: State) -> Traceable:
    """``(shares) -> digest`` of each leaf."""
    mesh = mesh_of(abstract)
    return digest.total, (_shares(abstract, mesh),), NamedSharding(mesh, PartitionSpec())


def require_digestible(state: State) -> None:
    """Refuse, in words, a state that these programs cannot take.

    Raises:
        ValueError: names the first such array.
    """
    meshes = set()
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(sharding, NamedSharding):
            raise ValueError(  # noqa: TRY004 - a value's place is no type
                f"{name} of the state lies on no mesh: put all of it on one, such as by "
                "jax.device_put(state, NamedSharding(mesh, PartitionSpec()))"
            )
        if not digest.has_digest(leaf.dtype):
            raise ValueError(
                f"{name} of the state is of type {leaf.dtype}, which has no digest: store keys of "
                "jax.random as jax.random.key_data"
            )
        meshes.add(sharding.mesh)
    if len(meshes) != 1:
        raise ValueError(f"the state lies on {len(meshes)} meshes: put all of it on one")


def mesh_of(abstract: State) -> Mesh:
    """The mesh on which a state lies."""
    mesh: Mesh = jax.tree.leaves(abstract)[0].sharding.mesh
    return mesh


def bytes_per_device(abstract: State) -> int:
    """Bytes of a tree's shards on one device."""
    leaves = jax.tree.leaves(abstract)
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in leaves)


def _shares(abstract: State, mesh: Mesh) -> jax.ShapeDtypeStruct:
    shape = (mesh.size, len(jax.tree.leaves(abstract)))
    by_device = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    return jax.ShapeDtypeStruct(shape, jnp.uint32, sharding=by_device)


def _copy(state: State) -> State:
    return jax.tree.map(jnp.copy, state)


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def _compiled(program: Traceable) -> Callable[..., Any]:
    function, arguments, out = program
    with jax.set_mesh(mesh_of(arguments[0])):
        return jax.jit(function, out_shardings=out).lower(*arguments).compile()
