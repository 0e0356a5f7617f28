"""Every kind of attention gives the same result, on any mesh, and keeps documents apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Jaxpr

from tpujob_ahead.work import _parts
from tpujob_trainer import attention, sharding, topology
from tpujob_trainer.sharding import ShardingError

BATCH, LENGTH, HEADS, KV_HEADS, WIDTH = 4, 256, 4, 2, 16
Inputs = tuple[jax.Array, jax.Array, jax.Array]


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    """Queries, keys and values."""
    draw = np.random.default_rng(0).standard_normal
    shapes = [(BATCH, LENGTH, heads, WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    q, k, v = (jnp.asarray(draw(shape), jnp.float32) for shape in shapes)
    return q, k, v


@pytest.fixture(scope="module")
def documents() -> jax.Array:
    """Three documents in each row, with borders at other places in each."""
    borders = np.random.default_rng(1).integers(0, 3, (BATCH, LENGTH))
    return jnp.asarray(np.sort(borders) + 1, jnp.int32)


def _naive(q: jax.Array, k: jax.Array, v: jax.Array, allowed_BxLxL: jax.Array) -> jax.Array:
    """Attention as the formula says, in float32."""
    k, v = (jnp.repeat(x, HEADS // KV_HEADS, axis=2) for x in (k, v))
    scores_BxHxLxL = jnp.einsum("blhc,bmhc->bhlm", q, k) / math.sqrt(WIDTH)
    scores_BxHxLxL = jnp.where(allowed_BxLxL[:, None], scores_BxHxLxL, -jnp.inf)
    return jnp.einsum("bhlm,bmhc->blhc", jax.nn.softmax(scores_BxHxLxL, axis=-1), v)


def _allowed(segments_BxL: jax.Array | None) -> jax.Array:
    causal = jnp.tril(jnp.ones((1, LENGTH, LENGTH), bool))
    if segments_BxL is None:
        return jnp.broadcast_to(causal, (BATCH, LENGTH, LENGTH))
    return causal & (segments_BxL[:, :, None] == segments_BxL[:, None, :])


def _result_and_gradients(attend: Callable[..., jax.Array], inputs: Inputs) -> list[jax.Array]:
    def weighted(*qkv: jax.Array) -> tuple[jax.Array, jax.Array]:
        mixed = attend(*qkv)
        weight = jnp.cos(jnp.arange(mixed.size, dtype=jnp.float32)).reshape(mixed.shape)
        return jnp.sum(mixed * weight), mixed

    gradients, mixed = jax.jit(jax.grad(weighted, argnums=(0, 1, 2), has_aux=True))(*inputs)
    return [mixed, *gradients]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("xla", None),
        ("xla", (1, 2, 2, 2)),
        ("xla", (1, 1, 8, 1)),
        ("splash", None),
        ("splash", (1, 2, 2, 2)),
    ],
)
def test_kinds_agree_with_the_formula(
    kind: str,
    shape: tuple[int, ...] | None,
    packed: bool,
    inputs: Inputs,
    documents: jax.Array,
) -> None:
    """Results and gradients are those of the formula, split or not, with documents or without."""
    segments = documents if packed else None
    allowed = _allowed(segments)
    expected = _result_and_gradients(lambda q, k, v: _naive(q, k, v, allowed), inputs)

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return attention.attention(q, k, v, kind=kind, segments_BxL=segments)

    if shape is None:
        found = _result_and_gradients(attend, inputs)
    else:
        sizes = dict(zip(sharding.AXES, shape, strict=True))
        mesh = topology.make_mesh(sizes, jax.devices()[: math.prod(shape)])
        names = [("batch", "length", heads, None) for heads in ("heads", "kv_heads", "kv_heads")]
        with jax.set_mesh(mesh):
            q, k, v = (
                jax.device_put(x, sharding.named(mesh, *name))
                for x, name in zip(inputs, names, strict=True)
            )
            found = _result_and_gradients(attend, (q, k, v))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


@pytest.mark.parametrize("length", [2_048, 8_192, 32_768])
def test_memory_of_splash_grows_with_the_length_of_rows(length: int) -> None:
    """No array of its gradient is larger than a few times the queries: rows may be long."""
    q = jax.ShapeDtypeStruct((1, length, 4, 128), jnp.bfloat16)
    k = jax.ShapeDtypeStruct((1, length, 2, 128), jnp.bfloat16)

    def total(*qkv: jax.Array) -> jax.Array:
        return jnp.sum(attention.attention(*qkv, kind="splash"))

    traced = jax.make_jaxpr(jax.grad(total, argnums=(0, 1, 2)))(q, k, k)
    largest = max(_sizes(traced.jaxpr))
    assert largest <= 4 * math.prod(q.shape), largest / math.prod(q.shape)


def _sizes(jaxpr: Jaxpr) -> Iterator[int]:
    """Elements of all arrays that a program makes, those of its parts included."""
    for equation in jaxpr.eqns:
        made: list[Any] = [variable.aval for variable in equation.outvars]
        yield from (aval.size for aval in made)
        if equation.primitive.name != "pallas_call":  # inside, blocks only
            for part in _parts(list(equation.params.values())):
                yield from _sizes(part)


@pytest.mark.parametrize("packed", [False, True])
def test_splash_of_long_rows_agrees_with_the_formula(packed: bool) -> None:
    """Queries' gradients come from a kernel of their own there."""
    keys = jax.random.split(jax.random.key(1), 3)
    length = 640  # five blocks of 128
    q, k, v = (jax.random.normal(key, (1, length, 2, 128), jnp.float32) for key in keys)
    segments = (jnp.arange(length) // 200)[None] if packed else None

    def by(kind: str) -> list[jax.Array]:
        def attend(*qkv: jax.Array) -> jax.Array:
            return attention.attention(*qkv, kind=kind, segments_BxL=segments)

        return _result_and_gradients(attend, (q, k, v))

    for one, other in zip(by("splash"), by("xla"), strict=True):
        np.testing.assert_allclose(one, other, atol=5e-5)


@pytest.mark.parametrize(
    ("platform", "length", "width", "context", "expected"),
    [
        ("cpu", 256, 64, 1, "xla"),
        ("tpu", 256, 64, 1, "splash"),
        ("tpu", 256, 64, 2, "splash"),
        ("tpu", 256, 64, 4, "xla"),
        ("tpu", 64, 64, 1, "xla"),
        ("gpu", 256, 64, 1, "cudnn"),
        ("gpu", 256, 64, 2, "xla"),
        ("gpu", 256, 6, 1, "xla"),
    ],
)
def test_auto_takes_what_the_devices_have(
    platform: str, length: int, width: int, context: int, expected: str
) -> None:
    """The best kind that works for devices and sizes is chosen."""
    found = attention.choose(
        "auto", platform, length=length, width=width, context=context, is_half=True
    )
    assert found == expected


@pytest.mark.parametrize(
    ("kind", "platform", "length", "context", "expected"),
    [
        ("cudnn", "cpu", 256, 1, "cudnn: the devices are cpu, not gpu; take xla or auto"),
        ("cudnn", "gpu", 256, 2, "cannot be split over a context axis"),
        ("splash", "tpu", 200, 1, "sequenceLength 200 is no multiple of 128"),
        ("splash", "tpu", 256, 4, "on each of 4 context shards"),
    ],
)
def test_kind_that_does_not_work_is_refused(
    kind: str, platform: str, length: int, context: int, expected: str
) -> None:
    """The error says why, and what to take instead."""
    with pytest.raises(ShardingError, match=expected):
        attention.choose(kind, platform, length=length, width=64, context=context, is_half=True)


def test_cudnn_needs_bfloat16() -> None:
    """In float32, auto takes XLA's attention, and asking for cuDNN's is an error."""
    sizes = {"length": 256, "width": 64, "context": 1}
    assert attention.choose("auto", "gpu", **sizes, is_half=False) == "xla"
    with pytest.raises(ShardingError, match=r"model\.precision is float32, and has to be bfloat16"):
        attention.choose("cudnn", "gpu", **sizes, is_half=False)


def test_platform_is_that_of_the_mesh() -> None:
    """A mesh of described TPUs makes a TPU program, whatever this machine has."""
    device = jax.sharding.AbstractDevice(device_kind="TPU v5", num_cores=1, platform="tpu")
    mesh = jax.sharding.AbstractMesh((1,) * 4, sharding.AXES, abstract_device=device)
    assert sharding.platform() == "cpu"
    with jax.sharding.use_abstract_mesh(mesh):
        assert sharding.platform() == "tpu"
