"""Causal attention behind one call: splash on TPU, cuDNN on GPU, XLA anywhere.

Letters: B batch, L length, H query heads, K key/value heads, C width of a head.
Over a ``context`` axis queries stay split by length, and keys and values are gathered.
"""

from __future__ import annotations

import functools
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec

from tpujob_trainer import sharding
from tpujob_trainer.sharding import ShardingError

#: Name of attention's result, for rematerialisation policies.
SAVED = "attention"
#: Splash works on blocks of this many positions at least: the lanes of a TPU.
_LANES = 128
#: Longest block of positions that splash takes at a time.
_BLOCK = 512
#: Blocks of keys in a row up to which one kernel computes all gradients, and not two.
_FUSED_BLOCKS = 4


def attention(
    q_BxLxHxC: jax.Array,
    k_BxLxKxC: jax.Array,
    v_BxLxKxC: jax.Array,
    *,
    kind: str,
    segments_BxL: jax.Array | None = None,
) -> jax.Array:
    """Causal attention with grouped queries (Ainslie et al., 2023), B x L x H x C.

    Args:
        q_BxLxHxC: queries.
        k_BxLxKxC: keys; K divides H.
        v_BxLxKxC: values.
        kind: ``splash``, ``cudnn``, ``xla``, or ``auto`` for what suits the devices.
        segments_BxL: number of each token's document; nothing attends across documents.

    Raises:
        ShardingError: this kind does not work on these devices or sizes.
    """
    mesh = jax.sharding.get_abstract_mesh()
    context = 1 if mesh.empty else mesh.shape["context"]
    length, width = q_BxLxHxC.shape[1], q_BxLxHxC.shape[3]
    chosen = choose(
        kind,
        sharding.platform(),
        length=length,
        width=width,
        context=context,
        is_half=q_BxLxHxC.dtype.itemsize == 2,
    )
    if chosen == "splash":
        mixed_BxLxHxC = _splash(q_BxLxHxC, k_BxLxKxC, v_BxLxKxC, segments_BxL)
    else:
        mixed_BxLxHxC = _dot_product(q_BxLxHxC, k_BxLxKxC, v_BxLxKxC, segments_BxL, chosen)
    named: jax.Array = checkpoint_name(mixed_BxLxHxC, SAVED)
    return named


def choose(
    kind: str, platform: str, *, length: int, width: int, context: int, is_half: bool
) -> str:
    """The kind of attention to use: ``splash``, ``cudnn`` or ``xla``.

    Args:
        kind: what the configuration says.
        platform: of the devices.
        length: positions of a row.
        width: of a head.
        context: devices among which a row is split.
        is_half: whether numbers have 16 bits.

    Raises:
        ShardingError: the configuration asks for a kind that does not work here.
    """
    faults = {
        "splash": _fault_of_splash(length, context),
        "cudnn": _fault_of_cudnn(platform, width, context, is_half=is_half),
        "xla": "",
    }
    if kind == "auto":
        best = {"tpu": "splash", "gpu": "cudnn"}.get(platform, "xla")
        return "xla" if faults[best] else best
    if faults[kind]:
        raise ShardingError(f"model.attention {kind}: {faults[kind]}; take xla or auto")
    return kind


def _fault_of_splash(length: int, context: int) -> str:
    if length % (_LANES * context) == 0:
        return ""
    return f"sequenceLength {length} is no multiple of {_LANES} on each of {context} context shards"


def _fault_of_cudnn(platform: str, width: int, context: int, *, is_half: bool) -> str:
    if platform != "gpu":
        return f"the devices are {platform}, not gpu"
    if not is_half:
        return "model.precision is float32, and has to be bfloat16"
    if width % 8 or width > 256:
        return f"heads are {width} wide, and have to be a multiple of 8 up to 256"
    return "" if context == 1 else "rows cannot be split over a context axis"


def _dot_product(
    q_BxLxHxC: jax.Array,
    k_BxLxKxC: jax.Array,
    v_BxLxKxC: jax.Array,
    segments_BxL: jax.Array | None,
    implementation: str,
) -> jax.Array:
    mask = None
    if segments_BxL is not None:
        mask = (segments_BxL[:, :, None] == segments_BxL[:, None, :])[:, None]
    k, v = _gathered(k_BxLxKxC), _gathered(v_BxLxKxC)
    attend = functools.partial(
        jax.nn.dot_product_attention, q_BxLxHxC, k, v, mask=mask, is_causal=True
    )
    if implementation == "cudnn":
        # What else cuDNN lacks on this machine it says only when asked.
        try:
            return jnp.asarray(attend(implementation="cudnn"))
        except (NotImplementedError, RuntimeError, ValueError) as error:
            warnings.warn(f"no cuDNN attention ({error}): taking XLA's", stacklevel=2)
    return jnp.asarray(attend(implementation="xla"))


def _gathered(x_BxLxKxC: jax.Array) -> jax.Array:
    return sharding.constrain(x_BxLxKxC, "batch", None, "kv_heads", None)


@functools.cache
def _kernel(length: int, heads: int, context: int, tensor: int, *, interpret: bool) -> Any:
    """The kernel with its mask, which takes half a second to work out: once, not in each layer."""
    from jax.experimental.pallas.ops.tpu import (  # noqa: PLC0415 - 0.3 s that only TPUs need
        splash_attention as splash,
    )

    block = _block(length // context)
    # The fused backward kernel keeps a gradient of all queries for each block of keys, in their
    # type, and adds them up afterwards: memory grows by the square of the length.
    is_fused = length // block <= _FUSED_BLOCKS
    make = functools.partial(
        splash.make_splash_mha,
        splash.MultiHeadMask([splash.CausalMask((length, length))] * heads),
        block_sizes=splash.BlockSizes(
            block_q=block,
            block_kv=block,
            block_q_dkv=block,
            block_kv_dkv=block,
            block_q_dq=None if is_fused else block,
            block_kv_dq=None if is_fused else block,
            use_fused_bwd_kernel=is_fused,
        ),
        head_shards=tensor,
        q_seq_shards=context,
        residual_checkpoint_name=SAVED,
        interpret=interpret,
    )
    # JAX's trace and mesh belong to a thread. Here the mask would become a part of the program
    # being traced, or be put on devices that may only be described.
    with ThreadPoolExecutor(1) as outside:
        return jax.tree.map(np.asarray, outside.submit(make).result())


def _splash(
    q_BxLxHxC: jax.Array,
    k_BxLxKxC: jax.Array,
    v_BxLxKxC: jax.Array,
    segments_BxL: jax.Array | None,
) -> jax.Array:
    """TPU's flash attention kernel, which skips the blocks that the mask leaves empty."""
    _, length, heads, width = q_BxLxHxC.shape
    mesh = jax.sharding.get_abstract_mesh()
    shards = {"context": 1, "tensor": 1} if mesh.empty else mesh.shape
    interpret = sharding.platform() != "tpu"
    kernel = _kernel(length, heads, shards["context"], shards["tensor"], interpret=interpret)

    def of_blocks(kernel: Any, *blocks: jax.Array) -> jax.Array:
        q, k, v, *segments = blocks
        ids = [_segment_ids(*segments)] if segments else []
        return jnp.asarray(jax.vmap(kernel)(q, k, v, *ids))

    q = q_BxLxHxC.swapaxes(1, 2) * jnp.asarray(width**-0.5, q_BxLxHxC.dtype)
    blocks = [q, k_BxLxKxC.swapaxes(1, 2), v_BxLxKxC.swapaxes(1, 2)]
    names: list[tuple[str | None, ...]] = [
        ("batch", "heads", "length", None),
        ("batch", "kv_heads", None, None),
        ("batch", "kv_heads", None, None),
    ]
    if segments_BxL is not None:
        blocks += [segments_BxL, segments_BxL]
        names += [("batch", "length"), ("batch", None)]
    if mesh.empty:
        return of_blocks(kernel, *blocks).swapaxes(1, 2)
    specs = [sharding.spec(*name) for name in names]
    of_mask = kernel.manual_sharding_spec(NamedSharding(mesh, PartitionSpec("tensor", "context")))
    mapped = jax.shard_map(
        of_blocks, in_specs=(of_mask, *specs), out_specs=specs[0], check_vma=False
    )
    return jnp.asarray(mapped(kernel, *blocks)).swapaxes(1, 2)


def _segment_ids(q_BxL: jax.Array, kv_BxL: jax.Array) -> Any:
    from jax.experimental.pallas.ops.tpu import (  # noqa: PLC0415 - as in _kernel
        splash_attention as splash,
    )

    return splash.SegmentIds(q_BxL, kv_BxL)


def _block(length: int) -> int:
    """The longest block of positions that divides ``length``."""
    return next(b for b in range(_BLOCK, 0, -_LANES) if length % b == 0)
