"""AdamW with a warm-up and one of three schedules."""

from __future__ import annotations

from typing import Any

import jax
import optax

from tpujob_trainer.config import OptimizerConfig


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """The optimizer of a run of ``steps`` steps; weights decay, scales of norms do not."""
    return optax.adamw(
        make_schedule(config, steps),
        b1=0.9,
        b2=0.95,
        weight_decay=config.weight_decay,
        mask=_decays,
    )


def make_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """The learning rate of the step after so many: a linear warm-up, then by ``config.schedule``.

    The first step already has a rate above zero, step ``warmupSteps`` has the peak. ``cosine``
    falls to ``finalShare`` of the peak at the last step; ``wsd`` (warm-up, stable, decay: Hu et
    al., 2024) stays at the peak and falls linearly over the last ``decaySteps``; ``constant``
    stays.
    """
    by_number = _by_number(config, steps)
    return lambda done: by_number(done + 1)


def _by_number(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """The same by the step's number, where the warm-up begins with nothing at 0."""
    peak = config.learning_rate
    warmup = min(config.warmup_steps, steps - 1)
    final = config.final_share * peak
    if config.schedule == "cosine":
        return optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps, final)
    schedules = [optax.linear_schedule(0.0, peak, warmup), optax.constant_schedule(peak)]
    borders = [warmup]
    if config.schedule == "wsd":
        decay = config.decay_steps or max(1, steps // 5)
        schedules.append(optax.linear_schedule(peak, final, decay))
        borders.append(max(warmup, steps - decay))
    return optax.join_schedules(schedules, borders)


def _decays(params: Any) -> Any:
    """Which weights decay: all matrices, embeddings among them, and no scale of a norm."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "norm" not in jax.tree_util.keystr(path[-1:]), params
    )
