"""A decoder-only transformer in plain JAX: RMSNorm, RoPE, grouped-query attention, SwiGLU.

Letters in names are dimensions: B batch, L length, D model width, H query heads,
K key/value heads, Q query heads per key/value head, C width of a head, F feed-forward
width, V vocabulary.
Weights are a dictionary; ``weights`` is the one table of their shapes, splits and
initial spread, so that nothing has to be traced to know what a checkpoint holds.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from tpujob_trainer import sharding
from tpujob_trainer.config import ModelConfig
from tpujob_trainer.digest import linear_index, mix32

Params = dict[str, Any]
RMS_EPSILON = 1e-6


@dataclasses.dataclass(frozen=True, slots=True)
class Weight:
    """One weight: its shape, the names of its dimensions, and its initial spread."""

    shape: tuple[int, ...]
    logical: tuple[str | None, ...]
    stddev: float  # 0: a scale that starts at one


def weights(c: ModelConfig) -> Params:
    """The table of weights, as a tree with the structure of the parameters."""
    d, h, k, w, f = c.d_model, c.heads, c.kv_heads, c.d_head, c.d_ff
    # Residual branches start small, so that depth does not blow up the activations.
    out = 1 / math.sqrt(2 * c.layers)
    layer = {
        "norms": Weight((2, d), (None, None), 0.0),  # before attention, before feed-forward
        # Query, key and value of a group side by side, gate and up too: one weight to
        # gather instead of three, one sum over the tensor axis in the backward pass.
        "query_key_value": Weight(
            (d, k, h // k + 2, w), ("embed", "kv_heads", None, None), d**-0.5
        ),
        "output": Weight((h, w, d), ("heads", None, "embed"), out * (h * w) ** -0.5),
        "gate_up": Weight((d, 2, f), ("embed", None, "ff"), d**-0.5),
        "down": Weight((f, d), ("ff", "embed"), out * f**-0.5),
    }
    return {
        "embedding": Weight((c.vocab, d), ("vocab", "embed"), 1.0),
        "layers": [layer] * c.layers,
        "final_norm": Weight((d,), (None,), 0.0),
        "unembedding": Weight((d, c.vocab), ("embed", "vocab"), d**-0.5),
    }


def abstract_params(c: ModelConfig, mesh: Mesh) -> Params:
    """Shapes, types and shardings of the parameters; nothing is computed."""

    def abstract(weight: Weight) -> jax.ShapeDtypeStruct:
        split = sharding.named(mesh, *weight.logical)
        return jax.ShapeDtypeStruct(weight.shape, jnp.float32, sharding=split)

    params: Params = jax.tree.map(abstract, weights(c))
    return params


def specs(c: ModelConfig) -> Params:
    """How each weight is split over the mesh."""
    table: Params = jax.tree.map(lambda weight: sharding.spec(*weight.logical), weights(c))
    return table


def init_params(c: ModelConfig, seed: int) -> Params:
    """Initial parameters: normal with the table's spread; equal for every sharding.

    Drawn by a counter-based hash: ``jax.random.normal`` gives nothing better here
    and took six times as long to compile on CPU (1.9 s for 0.3 s).
    """
    table, structure = jax.tree.flatten(weights(c))
    leaves = [_initial(weight, seed, number) for number, weight in enumerate(table)]
    params: Params = jax.tree.unflatten(structure, leaves)
    return params


def _initial(weight: Weight, seed: int, number: int) -> jax.Array:
    if weight.stddev == 0.0:
        return jnp.ones(weight.shape, jnp.float32)
    key = mix32(jnp.uint32(seed % 2**32) ^ mix32(jnp.uint32(number + 1)))
    index = linear_index(weight.shape, weight.shape, [0] * len(weight.shape))
    # Box-Muller: two uniform numbers, the first one above 0, make a normal one.
    first = (mix32(2 * index + key).astype(jnp.float32) + 0.5) * 2.0**-32
    second = mix32(2 * index + 1 + key).astype(jnp.float32) * 2.0**-32
    return weight.stddev * jnp.sqrt(-2 * jnp.log(first)) * jnp.cos(2 * math.pi * second)


def compute_dtype(c: ModelConfig) -> jnp.dtype:
    """bfloat16 where the hardware multiplies it natively, float32 on CPU."""
    if c.precision != "auto":
        return jnp.dtype(c.precision)
    return jnp.dtype("float32" if jax.default_backend() == "cpu" else "bfloat16")


def logits(params: Params, tokens_BxL: jax.Array, c: ModelConfig) -> jax.Array:
    """Unnormalised log-probabilities of each next token, shape B x L x V, float32."""
    dtype = compute_dtype(c)
    params = jax.tree.map(lambda weight: weight.astype(dtype), params)
    x_BxLxD = _split_batch(_embed(params["embedding"], tokens_BxL))
    for layer in params["layers"]:
        x_BxLxD += _attention(layer, _rms_norm(x_BxLxD, layer["norms"][0]), c)
        x_BxLxD += _feed_forward(layer, _rms_norm(x_BxLxD, layer["norms"][1]))
        x_BxLxD = _split_batch(x_BxLxD)
    x_BxLxD = _rms_norm(x_BxLxD, params["final_norm"])
    logits_BxLxV = x_BxLxD @ params["unembedding"]
    return jnp.astype(logits_BxLxV, jnp.float32)


def token_losses(params: Params, rows_BxM: jax.Array, c: ModelConfig) -> jax.Array:
    """Cross-entropy of each next token in nats, B x L; a row holds M = L + 1 tokens."""
    inputs_BxL, targets_BxL = rows_BxM[:, :-1], rows_BxM[:, 1:]
    logits_BxLxV = logits(params, inputs_BxL, c)
    chosen_BxL = jnp.take_along_axis(logits_BxLxV, targets_BxL[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits_BxLxV, axis=-1) - chosen_BxL


def _embed(embedding_VxD: jax.Array, tokens_BxL: jax.Array) -> jax.Array:
    # Gathered over fsdp first: XLA cannot turn a lookup split by width into one split by
    # batch, and would replicate its whole result.
    return _split(embedding_VxD, "vocab", None)[tokens_BxL]


def _split_batch(x_BxLxD: jax.Array) -> jax.Array:
    """Keep activations split by batch alone, so that weights travel and activations do not."""
    return _split(x_BxLxD, "batch", None, None)


def _split(x: jax.Array, *logical: str | None) -> jax.Array:
    if jax.sharding.get_abstract_mesh().empty:
        return x
    constrained: jax.Array = jax.lax.with_sharding_constraint(x, sharding.spec(*logical))
    return constrained


def _rms_norm(x_BxLxD: jax.Array, scale_D: jax.Array) -> jax.Array:
    """Divide by the root mean square (Zhang and Sennrich, 2019), in float32."""
    x = x_BxLxD.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + RMS_EPSILON)
    return (x * inverse).astype(x_BxLxD.dtype) * scale_D


def _rope(x_BxLxHxC: jax.Array, theta: float) -> jax.Array:
    """Rotary position embedding (Su et al., 2021): rotate pairs by position x frequency."""
    length, half = x_BxLxHxC.shape[1], x_BxLxHxC.shape[3] // 2
    frequency_C = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle_LxC = jnp.arange(length, dtype=jnp.float32)[:, None] * frequency_C
    cos, sin = jnp.cos(angle_LxC)[:, None, :], jnp.sin(angle_LxC)[:, None, :]
    first, second = x_BxLxHxC[..., :half], x_BxLxHxC[..., half:]
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x_BxLxHxC.dtype)


def _attention(layer: Params, x_BxLxD: jax.Array, c: ModelConfig) -> jax.Array:
    """Causal attention with grouped queries (Ainslie et al., 2023)."""
    batch, length, _ = x_BxLxD.shape
    qkv_BxLxKxGxC = jnp.einsum("bld,dkgc->blkgc", x_BxLxD, layer["query_key_value"])
    q_BxLxKxQxC = qkv_BxLxKxGxC[..., :-2, :]
    q_BxLxHxC = _rope(q_BxLxKxQxC.reshape(batch, length, c.heads, c.d_head), c.rope_theta)
    k_BxLxKxC = _rope(qkv_BxLxKxGxC[..., -2, :], c.rope_theta)
    v_BxLxKxC = qkv_BxLxKxGxC[..., -1, :]
    mixed_BxLxHxC = jax.nn.dot_product_attention(q_BxLxHxC, k_BxLxKxC, v_BxLxKxC, is_causal=True)
    return jnp.einsum("blhc,hcd->bld", mixed_BxLxHxC, layer["output"])


def _feed_forward(layer: Params, x_BxLxD: jax.Array) -> jax.Array:
    """SwiGLU (Shazeer, 2020)."""
    gate_up_BxLx2xF = jnp.einsum("bld,dgf->blgf", x_BxLxD, layer["gate_up"])
    hidden_BxLxF = jax.nn.silu(gate_up_BxLx2xF[:, :, 0]) * gate_up_BxLx2xF[:, :, 1]
    return jnp.matmul(hidden_BxLxF, layer["down"])
