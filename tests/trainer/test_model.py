"""The model is causal, equal for every sharding, and does not change unnoticed."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from tests.trainer.worlds import SMALL_MODEL
from tpujob_trainer import config as configs
from tpujob_trainer import model, sharding, step, topology
from tpujob_trainer.config import TrainerConfig
from tpujob_trainer.presets import ModelConfig
from tpujob_trainer.programs import Programs

MESHES = [(1, 1, 1, 1), (2, 2, 1, 2), (1, 4, 1, 1), (1, 2, 2, 2), (2, 1, 4, 1)]


def _config() -> TrainerConfig:
    return configs.load(
        {
            "model": {**SMALL_MODEL, "layers": 2},
            "globalBatch": 8,
            "sequenceLength": 16,
            "steps": 20,
            "checkpoint": {"directory": "c"},
        }
    )


def _mesh(shape: tuple[int, ...]) -> Mesh:
    sizes = dict(zip(sharding.AXES, shape, strict=True))
    return topology.make_mesh(sizes, jax.devices()[: math.prod(shape)])


def _rows(config: TrainerConfig, seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    shape = (config.global_batch, config.sequence_length + 1)
    return np.random.default_rng(seed).integers(0, 256, shape, np.int32)


@pytest.fixture(scope="module")
def small() -> tuple[ModelConfig, model.Params]:
    """A model with two layers, and its initial weights."""
    config = _config().model
    return config, jax.jit(lambda: model.init_params(config, 3))()


def test_logits_do_not_depend_on_later_tokens(small: tuple[ModelConfig, model.Params]) -> None:
    """Changing token t changes no logits before t, and those at t."""
    config, params = small
    tokens_BxL = jnp.asarray(_rows(_config())[:1, :-1])
    logits = jax.jit(lambda tokens: model.logits(params, tokens, config))
    changed = logits(tokens_BxL.at[0, 9].add(1)) != logits(tokens_BxL)
    assert not changed[0, :9].any()
    assert changed[0, 9:].any(axis=-1).all()


def test_gradients_flow_only_to_earlier_inputs(small: tuple[ModelConfig, model.Params]) -> None:
    """The loss at position t has a gradient for embeddings of tokens up to t, and none after."""
    config, params = small
    # Every token is used once, so that a row of the embedding is a position.
    rows_BxM = jnp.arange(17, dtype=jnp.int32)[None]

    def loss_at_9(embedding_VxD: jax.Array) -> jax.Array:
        return model.token_losses({**params, "embedding": embedding_VxD}, rows_BxM, config)[0, 9]

    reached = (jax.jit(jax.grad(loss_at_9))(params["embedding"]) != 0).any(axis=-1)
    assert reached[:10].all()
    assert not reached[10:].any()


def test_initial_loss_is_near_chance(small: tuple[ModelConfig, model.Params]) -> None:
    """An untrained model is about as good as guessing: ln 256 nats, plus its own noise."""
    config, params = small
    losses = jax.jit(lambda rows: model.token_losses(params, rows, config))(_rows(_config()))
    assert jnp.mean(losses) == pytest.approx(math.log(256) + 0.5, abs=0.4)


def test_initial_weights_have_the_spread_of_the_table() -> None:
    """The hash-based draw is normal: mean, spread and tails are those of the table."""
    config = configs.load({"checkpoint": {"directory": "c"}}).model
    drawn = jax.jit(lambda: model.init_params(config, 0)["embedding"])().ravel()
    assert drawn.size == 16_384
    assert float(drawn.mean()) == pytest.approx(0.0, abs=0.03)
    assert float(drawn.std()) == pytest.approx(1.0, abs=0.02)
    assert float((jnp.abs(drawn) > 1.96).mean()) == pytest.approx(0.05, abs=0.01)
    assert jnp.unique(drawn).size > 16_300


@pytest.mark.parametrize("shape", MESHES[1:])
def test_sharded_steps_equal_unsharded_ones(shape: tuple[int, ...]) -> None:
    """Three steps give the same losses and gradient norms on every mesh."""
    expected = _three_steps(MESHES[0])
    assert _three_steps(shape) == pytest.approx(expected, rel=2e-5)


@functools.cache
def _three_steps(shape: tuple[int, ...]) -> list[float]:
    """Loss and gradient norm of each step, on a mesh of this shape."""
    config = _config()
    programs = Programs(config, _mesh(shape), "")
    state, train = programs.init().call(), programs.train().call
    found = []
    for seed in range(3):
        rows = jax.device_put(_rows(config, seed), programs.rows.sharding)
        state, metrics = train(state, rows)
        found += [float(metrics["loss"]), float(metrics["grad_norm"])]
    return found


def test_program_runs_without_a_mesh() -> None:
    """The pure functions work outside of any mesh too, and agree with the compiled program."""
    config = _config()
    first = jax.jit(lambda rows: step.train_step(step.init_state(config), rows, config))
    state, metrics = first(_rows(config))
    expected = _three_steps(MESHES[0])
    found = [float(metrics["loss"]), float(metrics["grad_norm"])]
    assert found == pytest.approx(expected[:2], rel=2e-5)
    assert int(state["step"]) == 1


def test_golden_step() -> None:
    """Losses of the first steps stay what they were.

    If a change of the model or the optimizer was meant, write the new numbers here: old
    checkpoints then go on with another course.
    """
    golden = [6.0753, 0.9561, 6.1317, 0.9913, 6.0222, 0.9906]
    assert _three_steps(MESHES[0]) == pytest.approx(golden, abs=2e-4)


def test_moments_are_split_like_their_weights() -> None:
    """No optimizer state is replicated that belongs to a split weight."""
    abstract = step.abstract_state(_config(), _mesh((2, 2, 1, 2)))
    weights = [leaf.sharding.spec for leaf in jax.tree.leaves(abstract["params"])]
    others = [leaf.sharding.spec for leaf in jax.tree.leaves(abstract["optimizer"]) if leaf.ndim]
    assert others == weights + weights
