"""The loss in chunks is the loss at once."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpujob_trainer import loss, sharding, topology

BATCH, LENGTH, WIDTH, VOCAB = 4, 24, 16, 64


@pytest.fixture(scope="module")
def inputs() -> tuple[jax.Array, jax.Array, jax.Array]:
    """Activations, weights and targets."""
    random = np.random.default_rng(0)
    x_BxLxD = random.standard_normal((BATCH, LENGTH, WIDTH), np.float32)
    table_DxV = random.standard_normal((WIDTH, VOCAB), np.float32)
    targets_BxL = random.integers(0, VOCAB, (BATCH, LENGTH), np.int32)
    return jnp.asarray(x_BxLxD), jnp.asarray(table_DxV), jnp.asarray(targets_BxL)


def _naive(x: jax.Array, table: jax.Array, targets: jax.Array) -> jax.Array:
    probabilities = jax.nn.log_softmax(x @ table)
    return -jnp.take_along_axis(probabilities, targets[..., None], axis=-1)[..., 0]


@pytest.mark.parametrize("shape", [None, (2, 1, 2, 2), (1, 4, 1, 2)])
@pytest.mark.parametrize("chunk", [0, 1, 2, 6, 24])
def test_chunks_give_the_loss_at_once(
    chunk: int,
    shape: tuple[int, ...] | None,
    inputs: tuple[jax.Array, jax.Array, jax.Array],
) -> None:
    """Losses and gradients do not depend on the chunk, nor on how the vocabulary is split."""
    x, table, targets = inputs
    weights = jnp.cos(jnp.arange(BATCH * LENGTH, dtype=jnp.float32)).reshape(BATCH, LENGTH)

    def total(x: jax.Array, table: jax.Array) -> tuple[jax.Array, jax.Array]:
        losses = loss.token_losses(x, table, targets, chunk=chunk)
        return jnp.sum(losses * weights), losses

    def naive_total(x: jax.Array, table: jax.Array) -> tuple[jax.Array, jax.Array]:
        losses = _naive(x, table, targets)
        return jnp.sum(losses * weights), losses

    expected = jax.grad(naive_total, argnums=(0, 1), has_aux=True)(x, table)
    gradient = jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))
    if shape is None:
        found = gradient(x, table)
    else:
        sizes = dict(zip(sharding.AXES, shape, strict=True))
        mesh = topology.make_mesh(sizes, jax.devices()[: math.prod(shape)])
        with jax.set_mesh(mesh):
            found = gradient(
                jax.device_put(x, sharding.named(mesh, "batch", "length", None)),
                jax.device_put(table, sharding.named(mesh, "embed", "vocab")),
            )
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("length", "logits", "chunk", "expected"),
    [
        (128, 4_194_304, 0, 1),  # small: at once
        (2048, 8 * 2048 * 32_768, 0, 1),  # the largest that is computed at once
        (2048, 8 * 2048 * 128_256, 0, 4),
        (2048, 9 * 2048 * 32_768, 0, 2),
        (6, 4 * loss.MAX_LOGITS, 0, 6),
        (7, 100 * loss.MAX_LOGITS, 0, 7),  # no more chunks than positions
        (128, 1, 32, 4),
        (64, 1, 128, 1),  # a chunk may be longer than a device's part of a row
    ],
)
def test_chunks_are_as_few_as_fit(length: int, logits: int, chunk: int, expected: int) -> None:
    """Chunks are made only where the logits of a device are too many, and divide its rows."""
    assert loss.chunks_for(length, logits, chunk) == expected


def test_chunked_loss_never_holds_all_logits(
    inputs: tuple[jax.Array, jax.Array, jax.Array],
) -> None:
    """No array of the compiled program, backward pass included, has all logits."""
    x, table, targets = inputs

    def total(x: jax.Array, chunk: int) -> jax.Array:
        return jnp.sum(loss.token_losses(x, table, targets, chunk=chunk))

    def holds_logits(chunk: int) -> bool:
        compiled = jax.jit(jax.grad(total), static_argnums=1).lower(x, chunk).compile()
        text = compiled.as_text() or ""
        return any(
            f"f32[{shape}]" in text
            for shape in (f"{BATCH},{LENGTH},{VOCAB}", f"{BATCH * LENGTH},{VOCAB}")
        )

    assert holds_logits(LENGTH)
    assert not holds_logits(6)


def test_targets_of_other_documents_do_not_count() -> None:
    """The first token of a document is predicted by nothing, and padding not at all."""
    segments_BxM = jnp.asarray([[1, 1, 1, 2, 2, 0, 0]])
    assert loss.counted(segments_BxM).tolist() == [[True, True, False, True, False, False]]
