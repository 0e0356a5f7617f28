"""Cross-entropy of the next token without the logits of a whole batch in float32.

Letters: B batch, L length, D model width, V vocabulary, N chunks, P positions of a chunk.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from tpujob_trainer import sharding

#: Logits that a device may hold at a time; below this, chunks only cost time.
MAX_LOGITS = 2**29


def chunks_for(length: int, logits: int, chunk: int) -> int:
    """Into how many chunks to split rows of ``length`` positions.

    Args:
        length: positions of a row on one device.
        logits: logits of all those positions on one device.
        chunk: positions of a chunk as configured; 0: as many as MAX_LOGITS allows.
    """
    if chunk:
        return length // math.gcd(length, chunk)
    return next(
        n
        for n in range(1, length + 1)
        if (length % n == 0 and logits <= n * MAX_LOGITS) or n == length
    )


def token_losses(
    x_BxLxD: jax.Array, unembedding_DxV: jax.Array, targets_BxL: jax.Array, *, chunk: int = 0
) -> jax.Array:
    """Cross-entropy of each target in nats, float32, B x L.

    Args:
        x_BxLxD: normalised activations after the last layer.
        unembedding_DxV: weights from activations to logits.
        targets_BxL: the tokens to predict.
        chunk: positions of a row whose logits exist at the same time; 0: by size.
    """
    batch, length, width = x_BxLxD.shape
    vocab = unembedding_DxV.shape[1]
    mesh = jax.sharding.get_abstract_mesh()
    context = 1 if mesh.empty else mesh.shape["context"]
    split = sharding.parts("batch", "length", "vocab")
    count = chunks_for(length // context, batch * length * vocab // split, chunk)
    if count == 1:
        return _losses(x_BxLxD, unembedding_DxV, targets_BxL)
    # Every N-th position makes a chunk, so that each device finds its own ones in all of them.
    x_NxBxPxD = jnp.moveaxis(x_BxLxD.reshape(batch, length // count, count, width), 2, 0)
    targets_NxBxP = jnp.moveaxis(targets_BxL.reshape(batch, length // count, count), 2, 0)
    # Gathered once, not in each chunk; float32, or the chunks' gradients would be summed in less.
    gathered = sharding.constrain(unembedding_DxV, None, "vocab").astype(jnp.float32)

    @jax.checkpoint
    def of_chunk(x_BxPxD: jax.Array, targets_BxP: jax.Array) -> jax.Array:
        return _losses(x_BxPxD, gathered.astype(unembedding_DxV.dtype), targets_BxP)

    losses_NxBxP = jax.lax.map(lambda part: of_chunk(*part), (x_NxBxPxD, targets_NxBxP))
    return jnp.moveaxis(losses_NxBxP, 0, 2).reshape(batch, length)


def _losses(x_BxLxD: jax.Array, unembedding_DxV: jax.Array, targets_BxL: jax.Array) -> jax.Array:
    logits_BxLxV = sharding.constrain(x_BxLxD @ unembedding_DxV, "batch", "length", "vocab")
    logits_BxLxV = logits_BxLxV.astype(jnp.float32)  # fused into the sums: never stored
    chosen_BxL = jnp.take_along_axis(logits_BxLxV, targets_BxL[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits_BxLxV, axis=-1) - chosen_BxL


def counted(segments_BxM: jax.Array) -> jax.Array:
    """Which targets of a row count, B x L bool: those in their input's document; 0 is padding."""
    inputs_BxL, targets_BxL = segments_BxM[:, :-1], segments_BxM[:, 1:]
    return (inputs_BxL == targets_BxL) & (targets_BxL != 0)
