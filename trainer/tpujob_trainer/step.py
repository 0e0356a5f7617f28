"""The pure functions of training: initial state, one step, and the shapes they work on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec

from tpujob_data.rows import Rows
from tpujob_trainer import loss, model, sharding
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


def train_step(
    state: State,
    rows_BxM: jax.Array,
    config: TrainerConfig,
    segments_BxM: jax.Array | None = None,
) -> tuple[State, Metrics]:
    """One optimizer step on a batch of rows of M = sequenceLength + 1 tokens.

    A step whose loss or gradient is not finite changes nothing but the step's number.

    Args:
        state: parameters, optimizer state and number of steps so far.
        rows_BxM: tokens.
        config: of the run.
        segments_BxM: number of each token's document; 0 is padding.

    Returns:
        The next state, and ``loss`` (nats per token) and ``grad_norm`` before it.
    """
    grads, losses_BxL = _gradients(state["params"], rows_BxM, config, segments_BxM)
    squares, total = global_sums(
        [
            (grads, model.specs(config.model), jnp.square),
            (losses_BxL, sharding.spec("batch", "length"), None),
        ]
    )
    mean_loss, grad_norm = total, jnp.sqrt(squares)
    # Clipped here and not by Optax, whose norm costs one collective for each weight.
    clip = jnp.minimum(1.0, config.optimizer.clip_norm / grad_norm)
    grads = jax.tree.map(lambda grad: grad * clip, grads)
    updates, optimizer = optimizer_of(config).update(grads, state["optimizer"], state["params"])
    updated = {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer}
    # The norm is not finite if any part of any gradient is not.
    is_finite = jnp.isfinite(mean_loss) & jnp.isfinite(grad_norm)
    following = jax.tree.map(
        lambda new, old: jnp.where(is_finite, new, old),
        updated,
        {name: state[name] for name in updated},
    )
    return {**following, "step": state["step"] + 1}, {"loss": mean_loss, "grad_norm": grad_norm}


def _gradients(
    params: model.Params,
    rows_BxM: jax.Array,
    config: TrainerConfig,
    segments_BxM: jax.Array | None,
) -> tuple[model.Params, jax.Array]:
    """Gradients of the batch's mean loss, and each token's share of that mean, B x L."""
    share_BxL = _shares(rows_BxM, segments_BxM)

    def total(params: model.Params, micro: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
        rows, shares, segments = micro
        losses = model.token_losses(params, rows, config.model, segments) * shares
        return jnp.sum(losses), losses

    gradient = jax.grad(total, has_aux=True)
    count = config.accumulation
    if count == 1:
        grads, losses_BxL = gradient(params, (rows_BxM, share_BxL, segments_BxM))
        return grads, losses_BxL

    def add(sums: model.Params, micro: tuple[Any, ...]) -> tuple[model.Params, jax.Array]:
        grads, losses = gradient(params, micro)
        return jax.tree.map(jnp.add, sums, grads), losses

    micros = jax.tree.map(lambda x: _micro_batches(x, count), (rows_BxM, share_BxL, segments_BxM))
    sums, losses_NxBxL = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), micros)
    return sums, jnp.swapaxes(losses_NxBxL, 0, 1).reshape(share_BxL.shape)


def _shares(rows_BxM: jax.Array, segments_BxM: jax.Array | None) -> jax.Array:
    """The weight of each target in the mean over a batch, B x L; all together 1."""
    batch, length = rows_BxM.shape[0], rows_BxM.shape[1] - 1
    if segments_BxM is None:
        return jnp.full((batch, length), 1 / (batch * length), jnp.float32)
    counted_BxL = loss.counted(segments_BxM)
    return counted_BxL / jnp.maximum(1, jnp.sum(counted_BxL))


def _micro_batches(x_BxM: jax.Array, count: int) -> jax.Array:
    """Every ``count``-th row makes a micro batch, so that each device keeps its own rows."""
    x_BxNxM = x_BxM.reshape(x_BxM.shape[0] // count, count, *x_BxM.shape[1:])
    return sharding.constrain(jnp.swapaxes(x_BxNxM, 0, 1), None, "batch", None)


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


def abstract_rows(config: TrainerConfig, mesh: Mesh) -> Any:
    """Shape and sharding of a batch: of tokens, or ``Rows`` of tokens and segments."""
    shape = (config.global_batch, config.sequence_length + 1)
    rows = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding.named(mesh, "batch", None))
    return Rows(rows, rows) if config.has_segments else rows
