"""The pure functions of training: initial state, one step, and the shapes they work on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec

from tpujob_trainer import model, sharding
from tpujob_trainer.config import TrainerConfig
from tpujob_trainer.optimizer import make_optimizer

State = dict[str, Any]  # params, optimizer, step
Metrics = dict[str, jax.Array]


def optimizer_of(config: TrainerConfig) -> optax.GradientTransformation:
    """The optimizer of this configuration."""
    return make_optimizer(config.optimizer, config.steps)


def init_state(config: TrainerConfig) -> State:
    """State before the first step."""
    params = model.init_params(config.model, config.seed)
    return {
        "params": params,
        "optimizer": optimizer_of(config).init(params),
        "step": jnp.zeros((), jnp.int32),
    }


def train_step(state: State, rows_BxM: jax.Array, config: TrainerConfig) -> tuple[State, Metrics]:
    """One optimizer step on a batch of rows of M = sequenceLength + 1 tokens.

    Returns:
        The next state, and ``loss`` (nats per token) and ``grad_norm`` before it.
    """

    def mean_loss(params: model.Params) -> tuple[jax.Array, jax.Array]:
        losses_BxL = model.token_losses(params, rows_BxM, config.model)
        return jnp.mean(losses_BxL), losses_BxL

    grads, losses_BxL = jax.grad(mean_loss, has_aux=True)(state["params"])
    squares, total = global_sums(
        [(grads, model.specs(config.model), jnp.square), (losses_BxL, sharding.spec("batch"), None)]
    )
    loss, grad_norm = total / losses_BxL.size, jnp.sqrt(squares)
    # Clipped here and not by Optax, whose norm costs one collective for each weight.
    clip = jnp.minimum(1.0, config.optimizer.clip_norm / grad_norm)
    grads = jax.tree.map(lambda grad: grad * clip, grads)
    updates, optimizer = optimizer_of(config).update(grads, state["optimizer"], state["params"])
    following = {
        "params": optax.apply_updates(state["params"], updates),
        "optimizer": optimizer,
        "step": state["step"] + 1,
    }
    return following, {"loss": loss, "grad_norm": grad_norm}


Summand = tuple[Any, Any, Callable[[jax.Array], jax.Array] | None]


def global_sums(summands: Sequence[Summand]) -> jax.Array:
    """Sums over whole trees, exchanged together: one collective for each mesh axis.

    Left to itself, XLA makes one collective for each array of each tree.

    Args:
        summands: for each sum a tree, its ``PartitionSpec``s, and a function to apply first.
    """
    mesh = jax.sharding.get_abstract_mesh()
    trees = [jax.tree.leaves(tree) for tree, _, _ in summands]
    specs = [jax.tree.leaves(spec) for _, spec, _ in summands]

    def of_blocks(blocks: list[list[jax.Array]]) -> Any:
        local = [
            # Devices that hold a copy of a block share its contribution.
            sum(
                jnp.sum(apply(block) if apply else block) / sharding.copies(spec, mesh)
                for block, spec in zip(leaves, leaf_specs, strict=True)
            )
            for (_, _, apply), leaves, leaf_specs in zip(summands, blocks, specs, strict=True)
        ]
        total: Any = jnp.stack(local)
        for axis in reversed(mesh.axis_names):  # the fastest network first
            total = jax.lax.psum(total, axis)
        return total

    if mesh.empty:
        return jnp.asarray(of_blocks(trees))
    # The copies are divided out, which JAX's own check of replication cannot see.
    mapped = jax.shard_map(of_blocks, in_specs=(specs,), out_specs=PartitionSpec(), check_vma=False)
    return jnp.asarray(mapped(trees))


def abstract_state(config: TrainerConfig, mesh: Mesh) -> State:
    """Shapes, types and shardings of the state; moments are split like their weights."""
    params = model.abstract_params(config.model, mesh)
    shape_of_params = jax.tree.structure(params)
    replicated = sharding.named(mesh)

    def is_moment(part: Any) -> bool:
        structure: object = jax.tree.structure(part)
        return structure == shape_of_params

    def split(part: Any) -> Any:
        # optax.tree_map_params does the same, in 120 ms where this takes 1.
        shardings = jax.tree.map(lambda p: p.sharding, params) if is_moment(part) else replicated
        return jax.tree.map(_with_sharding, part, shardings)

    optimizer = jax.eval_shape(optimizer_of(config).init, params)
    return {
        "params": params,
        "optimizer": jax.tree.map(split, optimizer, is_leaf=is_moment),
        "step": jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated),
    }


def _with_sharding(
    leaf: jax.ShapeDtypeStruct, split: jax.sharding.NamedSharding
) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=split)


def abstract_rows(config: TrainerConfig, mesh: Mesh) -> jax.ShapeDtypeStruct:
    """Shape and sharding of a batch."""
    shape = (config.global_batch, config.sequence_length + 1)
    return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding.named(mesh, "batch", None))
