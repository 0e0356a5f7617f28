"""Learning rates follow the schedule, and only weights decay."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.worlds import SMALL_MODEL
from tpujob_trainer import config as configs
from tpujob_trainer import model
from tpujob_trainer.config import OptimizerConfig
from tpujob_trainer.optimizer import make_optimizer, make_schedule


@pytest.mark.parametrize(
    ("schedule", "decay_steps", "expected"),
    [
        # Steps:             1   10   50   80   90   100
        ("constant", 0, [0.1, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("cosine", 0, [0.1, 1.0, 0.6281, 0.2053, 0.1271, 0.1]),
        ("wsd", 0, [0.1, 1.0, 1.0, 1.0, 0.55, 0.1]),
        ("wsd", 10, [0.1, 1.0, 1.0, 1.0, 1.0, 0.1]),
        ("wsd", 100, [0.1, 1.0, 0.64, 0.37, 0.28, 0.19]),
    ],
)
def test_learning_rates_by_schedule(schedule: str, decay_steps: int, expected: list[float]) -> None:
    """Peak after the warm-up, then down to the final share as the schedule says."""
    config = OptimizerConfig(
        learning_rate=1.0, warmup_steps=10, schedule=schedule, decay_steps=decay_steps
    )
    rate = make_schedule(config, 100)
    found = [float(rate(jnp.asarray(step - 1))) for step in (1, 10, 50, 80, 90, 100)]
    assert found == pytest.approx(expected, abs=1e-3)


@given(
    schedule=st.sampled_from(["constant", "cosine", "wsd"]),
    warmup=st.integers(0, 30),
    steps=st.integers(1, 30),
    decay=st.integers(0, 30),
    share=st.floats(0, 1),
)
def test_learning_rate_stays_between_nothing_and_its_peak(
    schedule: str, warmup: int, steps: int, decay: int, share: float
) -> None:
    """Whatever the lengths, the first step learns, and none has a rate above the peak."""
    config = OptimizerConfig(
        learning_rate=0.5,
        warmup_steps=warmup,
        schedule=schedule,
        decay_steps=decay,
        final_share=share,
    )
    rates = np.asarray(jax.vmap(make_schedule(config, steps))(jnp.arange(steps)))
    assert np.isfinite(rates).all()
    assert rates[0] > 0 or share == 0
    assert (rates >= 0).all()
    assert (rates <= 0.5 + 1e-6).all()


@pytest.mark.parametrize("scan", [False, True])
def test_only_matrices_decay(scan: bool) -> None:
    """Without gradients, weights and embeddings shrink, and scales of norms stay."""
    config = configs.load(
        {
            "model": {**SMALL_MODEL, "scanLayers": scan},
            "optimizer": {"warmupSteps": 0, "learningRate": 0.1, "weightDecay": 1.0},
            "checkpoint": {"directory": "c"},
        }
    )
    params = model.init_params(config.model, 0)
    optimizer = make_optimizer(config.optimizer, 10)
    nothing = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(nothing, optimizer.init(params), params)
    for path, update in jax.tree_util.tree_flatten_with_path(updates)[0]:
        name = jax.tree_util.keystr(path)
        assert bool((update == 0).all()) is ("norm" in name), name
