"""A decoder-only transformer in plain JAX: RMSNorm, RoPE, grouped-query attention, SwiGLU.

Letters in names are dimensions: B batch, L length, D model width, H query heads,
K key/value heads, Q query heads per key/value head, C width of a head, F feed-forward
width, V vocabulary.
Weights are a dictionary; ``weights`` is the one table of their shapes, splits and
initial spread, so that nothing has to be traced to know what a checkpoint holds.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import struct
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh

from tpujob_checkpoint.digest import linear_index, mix32
from tpujob_trainer import attention, loss, sharding
from tpujob_trainer.presets import ModelConfig

Params = dict[str, Any]
RMS_EPSILON = 1e-6
#: Name of a layer's input, for rematerialisation policies.
LAYER_INPUT = "layer_input"


@dataclasses.dataclass(frozen=True, slots=True)
class Weight:
    """One weight: its shape, the names of its dimensions, and its initial spread.

    ``draws`` numbers the random streams: one for a weight, or one for each layer of a stack.
    """

    shape: tuple[int, ...]
    logical: tuple[str | None, ...]
    stddev: float  # 0: a scale that starts at one
    draws: tuple[int, ...] = (0,)


def weights(c: ModelConfig) -> Params:
    """The table of weights, as a tree with the structure of the parameters.

    ``layers`` is a list, or with ``scanLayers`` one tree of stacked weights.
    """
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
    table = {
        "embedding": Weight(
            (c.vocab, d), ("vocab", "embed"), d**-0.5 if c.tied_embeddings else 1.0, (1,)
        ),
        "layers": _stacked(layer, c) if c.scan_layers else _listed(layer, c),
        "final_norm": Weight((d,), (None,), 0.0),
    }
    if not c.tied_embeddings:
        table["unembedding"] = Weight((d, c.vocab), ("embed", "vocab"), d**-0.5, (2,))
    return table


def _draw(layer: int, position: int) -> int:
    return 3 + layer * 8 + position


def _listed(layer: Params, c: ModelConfig) -> list[Params]:
    return [
        {
            name: dataclasses.replace(weight, draws=(_draw(number, position),))
            for position, (name, weight) in enumerate(layer.items())
        }
        for number in range(c.layers)
    ]


def _stacked(layer: Params, c: ModelConfig) -> Params:
    return {
        name: Weight(
            (c.layers, *weight.shape),
            (None, *weight.logical),
            weight.stddev,
            tuple(_draw(number, position) for number in range(c.layers)),
        )
        for position, (name, weight) in enumerate(layer.items())
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

    Each random stream has keys of its own, 128 bits, and counts from 0: streams of all weights
    together need more numbers than a counter of 32 bits has. ``jax.random.normal`` would do as
    well, and takes six times as long to compile on CPU (1.9 s for 0.3 s).
    """
    params: Params = jax.tree.map(functools.partial(_initial, seed=seed), weights(c))
    return params


def stream_keys(seed: int, draw: int) -> list[int]:
    """The keys of one random stream, four of 32 bits: different for every seed and stream."""
    digest = hashlib.blake2b(f"{seed}/{draw}".encode(), digest_size=16).digest()
    return list(struct.unpack("<4I", digest))


def _initial(weight: Weight, *, seed: int) -> jax.Array:
    if weight.stddev == 0.0:
        return jnp.ones(weight.shape, jnp.float32)
    keys = jnp.asarray([stream_keys(seed, draw) for draw in weight.draws], jnp.uint32)
    shape = weight.shape if len(weight.draws) == 1 else weight.shape[1:]
    draw = functools.partial(_normal, linear_index(shape, shape, [0] * len(shape)))
    drawn = draw(keys[0]) if len(weight.draws) == 1 else jax.vmap(draw)(keys)
    return weight.stddev * drawn.reshape(weight.shape)


def _normal(index: jax.Array, keys: jax.Array) -> jax.Array:
    """Box-Muller: two uniform numbers, the first one above 0, make a normal one."""
    first = (permuted(index, keys[0], keys[1]).astype(jnp.float32) + 0.5) * 2.0**-32
    second = permuted(index, keys[2], keys[3]).astype(jnp.float32) * 2.0**-32
    return jnp.sqrt(-2 * jnp.log(first)) * jnp.cos(2 * math.pi * second)


def permuted(index: jax.Array, inner: jax.Array, outer: jax.Array) -> jax.Array:
    """A permutation of uint32 chosen by two keys.

    The outer key makes the order of the numbers another one for each stream. With the inner key
    alone, streams would be windows of one sequence.
    """
    return mix32(mix32(index ^ inner) ^ outer)


def compute_dtype(c: ModelConfig) -> jnp.dtype:
    """bfloat16 where the hardware multiplies it natively, float32 on CPU."""
    if c.precision in {"auto", "int8"}:
        return jnp.dtype("float32" if sharding.platform() == "cpu" else "bfloat16")
    return jnp.dtype(c.precision)


def logits(
    params: Params, tokens_BxL: jax.Array, c: ModelConfig, segments_BxL: jax.Array | None = None
) -> jax.Array:
    """Unnormalised log-probabilities of each next token, shape B x L x V, float32."""
    params = _cast(params, c)
    x_BxLxD = _hidden(params, tokens_BxL, c, segments_BxL)
    return (x_BxLxD @ _unembedding(params, c)).astype(jnp.float32)


def token_losses(
    params: Params, rows_BxM: jax.Array, c: ModelConfig, segments_BxM: jax.Array | None = None
) -> jax.Array:
    """Cross-entropy of each next token in nats, B x L; a row holds M = L + 1 tokens."""
    params = _cast(params, c)
    segments_BxL = None if segments_BxM is None else segments_BxM[:, :-1]
    x_BxLxD = _hidden(params, rows_BxM[:, :-1], c, segments_BxL)
    targets_BxL = sharding.constrain(rows_BxM[:, 1:], "batch", "length")
    return loss.token_losses(x_BxLxD, _unembedding(params, c), targets_BxL, chunk=c.loss_chunk)


def _cast(params: Params, c: ModelConfig) -> Params:
    dtype = compute_dtype(c)
    cast: Params = jax.tree.map(lambda weight: weight.astype(dtype), params)
    return cast


def _unembedding(params: Params, c: ModelConfig) -> jax.Array:
    table: jax.Array = params["embedding"].T if c.tied_embeddings else params["unembedding"]
    return table


def _hidden(
    params: Params, tokens_BxL: jax.Array, c: ModelConfig, segments_BxL: jax.Array | None
) -> jax.Array:
    """Normalised activations after the last layer, B x L x D."""
    x_BxLxD = _split_rows(_embed(params["embedding"], tokens_BxL, c))
    rope_2xLxC = _rope_table(tokens_BxL.shape[1], c)
    block = _remat(
        functools.partial(_block, c=c, rope_2xLxC=rope_2xLxC, segments_BxL=segments_BxL), c
    )
    if c.scan_layers:
        x_BxLxD, _ = jax.lax.scan(
            lambda x, layer: (block(x, layer), None), x_BxLxD, params["layers"]
        )
    else:
        for layer in params["layers"]:
            x_BxLxD = block(x_BxLxD, layer)
    return _rms_norm(x_BxLxD, params["final_norm"])


def _embed(embedding_VxD: jax.Array, tokens_BxL: jax.Array, c: ModelConfig) -> jax.Array:
    # Gathered over fsdp first: XLA cannot turn a lookup split by width into one split by
    # batch, and would replicate its whole result.
    tokens_BxL = sharding.constrain(tokens_BxL, "batch", "length")
    x_BxLxD = sharding.constrain(embedding_VxD, "vocab", None)[tokens_BxL]
    # A table that is also the unembedding has the small spread that this one needs.
    return x_BxLxD * math.sqrt(c.d_model) if c.tied_embeddings else x_BxLxD


def _split_rows(x_BxLxD: jax.Array) -> jax.Array:
    """Keep activations split by rows alone, so that weights travel and activations do not."""
    return sharding.constrain(x_BxLxD, "batch", "length", None)


Block = Callable[[jax.Array, Params], jax.Array]


def _remat(block: Block, c: ModelConfig) -> Block:
    """``block`` with what its backward pass computes again instead of keeping it."""
    policies = jax.checkpoint_policies
    if c.remat == "none":
        return block
    policy = {
        "dots": policies.save_from_both_policies(
            policies.dots_with_no_batch_dims_saveable, _keeps_attention
        ),
        "full": policies.nothing_saveable,
        "offload": policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[],
            names_which_can_be_offloaded=[LAYER_INPUT, attention.SAVED],
            offload_src="device",
            offload_dst="pinned_host",
        ),
    }[c.remat]
    rematerialised: Block = jax.checkpoint(block, policy=policy, prevent_cse=not c.scan_layers)
    return rematerialised


def _keeps_attention(primitive: Any, *_: Any, **parameters: Any) -> bool:
    # cuDNN's kernel keeps sums of its own, which carry no name.
    is_cudnn = primitive.name.startswith("dot_product_attention_fwd")
    return is_cudnn or parameters.get("name") == attention.SAVED


def _block(
    x_BxLxD: jax.Array,
    layer: Params,
    *,
    c: ModelConfig,
    rope_2xLxC: jax.Array,
    segments_BxL: jax.Array | None,
) -> jax.Array:
    """One layer: attention and feed-forward, each added to what it reads."""
    x_BxLxD = checkpoint_name(x_BxLxD, LAYER_INPUT)
    normed_BxLxD = _rms_norm(x_BxLxD, layer["norms"][0])
    x_BxLxD += _attention(layer, normed_BxLxD, c, rope_2xLxC, segments_BxL)
    x_BxLxD += _feed_forward(layer, _rms_norm(x_BxLxD, layer["norms"][1]), c)
    return _split_rows(x_BxLxD)


def _rms_norm(x_BxLxD: jax.Array, scale_D: jax.Array) -> jax.Array:
    """Divide by the root mean square (Zhang and Sennrich, 2019), in float32."""
    x = x_BxLxD.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + RMS_EPSILON)
    return (x * inverse).astype(x_BxLxD.dtype) * scale_D


def _rope_table(length: int, c: ModelConfig) -> jax.Array:
    """Cosine and sine of every position times frequency (Su et al., 2021), 2 x L x C/2."""
    half = c.d_head // 2
    frequency_C = c.rope_theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle_LxC = jnp.arange(length, dtype=jnp.float32)[:, None] * frequency_C
    return jnp.stack([jnp.cos(angle_LxC), jnp.sin(angle_LxC)])


def _rope(x_BxLxHxC: jax.Array, rope_2xLxC: jax.Array) -> jax.Array:
    """Rotary position embedding: rotate pairs, first half with second, in float32."""
    cos, sin = rope_2xLxC[:, :, None, :]
    first, second = jnp.split(x_BxLxHxC.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x_BxLxHxC.dtype)


def _attention(
    layer: Params,
    x_BxLxD: jax.Array,
    c: ModelConfig,
    rope_2xLxC: jax.Array,
    segments_BxL: jax.Array | None,
) -> jax.Array:
    batch, length, _ = x_BxLxD.shape
    qkv_BxLxKxGxC = _product(x_BxLxD, layer["query_key_value"], c)
    q_BxLxHxC = qkv_BxLxKxGxC[..., :-2, :].reshape(batch, length, c.heads, c.d_head)
    mixed_BxLxHxC = attention.attention(
        _rope(q_BxLxHxC, rope_2xLxC),
        _rope(qkv_BxLxKxGxC[..., -2, :], rope_2xLxC),
        qkv_BxLxKxGxC[..., -1, :],
        kind=c.attention,
        segments_BxL=segments_BxL,
    )
    return _product(mixed_BxLxHxC, layer["output"], c, contracted=2)


def _feed_forward(layer: Params, x_BxLxD: jax.Array, c: ModelConfig) -> jax.Array:
    """SwiGLU (Shazeer, 2020)."""
    gate_up_BxLx2xF = _product(x_BxLxD, layer["gate_up"], c)
    hidden_BxLxF = jax.nn.silu(gate_up_BxLx2xF[:, :, 0]) * gate_up_BxLx2xF[:, :, 1]
    return _product(hidden_BxLxF, layer["down"], c)


def _product(x: jax.Array, weight: jax.Array, c: ModelConfig, contracted: int = 1) -> jax.Array:
    """Contract the last dimensions of activations with the first ones of a weight."""
    last = tuple(range(x.ndim - contracted, x.ndim))
    numbers = ((last, tuple(range(contracted))), ((), ()))
    if c.precision != "int8":
        return jax.lax.dot_general(x, weight, numbers)
    from tpujob_trainer import int8  # noqa: PLC0415 - brings Flax, 1.5 s that only int8 needs

    return int8.dot_general(x, weight, numbers)
