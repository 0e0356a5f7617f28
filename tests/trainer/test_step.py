"""A step is the same however it is split or computed again, and a bad one changes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from tests.trainer.worlds import SMALL_MODEL
from tpujob_trainer import config as configs
from tpujob_trainer import model, sharding, step, topology
from tpujob_trainer.config import TrainerConfig
from tpujob_trainer.programs import Programs
from tpujob_trainer.train import skipped_in_a_row


def _config(**changes: Any) -> TrainerConfig:
    model_changes = changes.pop("model", {})
    return configs.load(
        {
            "model": {**SMALL_MODEL, "layers": 2, **model_changes},
            "globalBatch": 8,
            "sequenceLength": 16,
            "steps": 20,
            "checkpoint": {"directory": "c"},
            **changes,
        }
    )


def _rows(config: TrainerConfig, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    shape = (config.global_batch, config.sequence_length + 1)
    return np.random.default_rng(seed).integers(0, 256, shape, np.int32)


def _course(
    config: TrainerConfig, shape: tuple[int, ...], seeds: Iterable[int]
) -> list[tuple[float, float]]:
    """Loss and gradient norm of steps on a mesh of this shape."""
    sizes = dict(zip(sharding.AXES, shape, strict=True))
    mesh = topology.make_mesh(sizes, jax.devices()[: math.prod(shape)])
    programs = Programs(config, mesh, "")
    state, train = programs.init().call(), programs.train().call
    found = []
    for seed in seeds:
        rows = jax.device_put(_rows(config, seed), programs.rows.sharding)
        state, metrics = train(state, rows)
        found.append((float(metrics["loss"]), float(metrics["grad_norm"])))
    return found


def _steps(config: TrainerConfig, shape: tuple[int, ...] = (1, 1, 1, 1)) -> list[float]:
    """Losses and gradient norms of three steps."""
    return [number for pair in _course(config, shape, range(3)) for number in pair]


@pytest.fixture(scope="module")
def plain() -> list[float]:
    """Three steps of the plain configuration on one device."""
    return _steps(_config())


@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        ({"accumulation": 4}, (1, 1, 1, 1)),
        ({"accumulation": 2}, (1, 2, 2, 2)),
        ({"model": {"scanLayers": True}}, (1, 1, 1, 1)),
        ({"model": {"scanLayers": True, "remat": "dots"}}, (2, 2, 1, 2)),
        ({"model": {"remat": "dots"}}, (1, 1, 1, 1)),
        ({"model": {"remat": "full"}}, (1, 2, 2, 1)),
        ({"model": {"lossChunk": 4}}, (1, 2, 2, 2)),
    ],
)
def test_choices_about_memory_do_not_change_the_course(
    changes: dict[str, Any], shape: tuple[int, ...], plain: list[float]
) -> None:
    """Accumulation, scan, rematerialisation and chunks give the losses of the plain step."""
    assert _steps(_config(**changes), shape) == pytest.approx(plain, rel=2e-5)


def test_activations_can_be_offloaded_to_the_host(plain: list[float]) -> None:
    """Offloading compiles, with scanned layers too, and gives the plain losses."""
    for scan in (False, True):
        config = _config(model={"remat": "offload", "scanLayers": scan})
        assert _steps(config) == pytest.approx(plain, rel=2e-5)


def test_tied_embeddings_share_one_table() -> None:
    """There is no second table, the first loss is near chance, and the loss falls."""
    config = _config(model={"tiedEmbeddings": True})
    assert "unembedding" not in model.weights(config.model)
    losses = _steps(config, (1, 2, 1, 2))
    # Seeds 1 to 5 begin 0.78 above chance on average: a token's table row is also its own logit.
    assert losses[0] == pytest.approx(math.log(256) + 0.8, abs=0.4)
    assert losses == pytest.approx(_steps(config), rel=2e-5)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 2, 1, 2)])
def test_int8_training_still_learns(shape: tuple[int, ...]) -> None:
    """On one batch again and again, the loss falls in int8 as it does in float32."""
    losses = {}
    for precision in ("float32", "int8"):
        config = _config(model={"precision": precision}, optimizer={"warmupSteps": 0})
        losses[precision] = [loss for loss, _ in _course(config, shape, [0] * 12)]
    assert losses["int8"][-1] < losses["int8"][0] - 1
    assert losses["int8"] == pytest.approx(losses["float32"], rel=0.05)
    assert losses["int8"] != pytest.approx(losses["float32"], rel=1e-5)


def test_int8_multiplies_in_int8_forward_and_backward() -> None:
    """All three products of each of a layer's four weights take int8."""
    config = _config(model={"precision": "int8", "layers": 1}).model
    params = model.init_params(config, 0)
    rows_BxM = jnp.asarray(_rows(_config(), 0))
    loss = jax.grad(lambda params: jnp.sum(model.token_losses(params, rows_BxM, config)))
    equations = _equations(jax.make_jaxpr(loss)(params).jaxpr)
    products = [e for e in equations if e.primitive.name == "dot_general"]
    in_int8 = [e for e in products if all(x.aval.dtype == jnp.int8 for x in e.invars)]
    assert len(in_int8) == 12


def _equations(jaxpr: Any) -> list[Any]:
    """Equations of a program and of all programs within."""
    inner = [part for e in jaxpr.eqns for part in core.jaxprs_in_params(e.params)]
    return [*jaxpr.eqns, *(e for part in inner for e in _equations(part))]


def test_loss_of_packed_rows_is_that_of_their_documents() -> None:
    """Two documents in a row have the losses that they have alone."""
    config = _config().model
    params = jax.jit(lambda: model.init_params(config, 0))()
    row_M = jnp.asarray(_rows(_config(), 0)[0])
    segments_BxM = jnp.asarray([[1] * 7 + [2] * 10])
    packed_L = model.token_losses(params, row_M[None], config, segments_BxM)[0]
    np.testing.assert_allclose(
        packed_L[:6], model.token_losses(params, row_M[None, :7], config)[0], rtol=1e-4
    )
    # Rotary positions are relative, so that the second document may start anywhere.
    np.testing.assert_allclose(
        packed_L[7:], model.token_losses(params, row_M[None, 7:], config)[0], rtol=1e-4
    )


def test_targets_across_documents_have_no_part_in_the_loss() -> None:
    """Changing the first token of the second document changes no loss of the first one's end."""
    config = _config()
    state = jax.jit(lambda: step.init_state(config))()
    rows = jnp.asarray(_rows(config, 0))
    segments = jnp.asarray([[1] * 7 + [0] * 10] * config.global_batch)
    run = jax.jit(lambda rows: step.train_step(state, rows, config, segments)[1]["loss"])
    first = float(run(rows))
    assert float(run(rows.at[:, 7:].set(1))) == pytest.approx(first, rel=1e-6)
    assert float(run(rows.at[:, 6].set(1))) != pytest.approx(first, rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_step_that_is_not_finite_changes_nothing_but_its_number(bad: float) -> None:
    """One bad weight's gradient spoils no other weight, and no moment."""
    config = _config()
    state = jax.jit(lambda: step.init_state(config))()
    state["params"]["final_norm"] = state["params"]["final_norm"].at[3].set(bad)
    train = jax.jit(lambda state, rows: step.train_step(state, rows, config))
    following, metrics = train(state, jnp.asarray(_rows(config, 0)))
    assert not math.isfinite(float(metrics["loss"]) + float(metrics["grad_norm"]))
    assert int(following["step"]) == 1
    for name in ("params", "optimizer"):
        jax.tree.map(np.testing.assert_array_equal, following[name], state[name])


@pytest.mark.parametrize(
    ("before", "loss", "grad_norm", "expected"),
    [
        (0, 1.0, 1.0, 0),
        (0, math.nan, 1.0, 1),
        (4, 1.0, math.inf, 5),
        (9, math.nan, math.nan, 10),
        (9, 1.0, 1.0, 0),
    ],
)
def test_skips_are_counted_in_a_row(
    before: int, loss: float, grad_norm: float, expected: int
) -> None:
    """A good step starts the count anew."""
    assert skipped_in_a_row(before, loss, grad_norm) == expected
