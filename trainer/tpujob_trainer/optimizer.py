"""AdamW with warm-up and cosine decay."""

from __future__ import annotations

import optax

from tpujob_trainer.config import OptimizerConfig

#: The learning rate ends at this share of its peak.
FINAL_SHARE = 0.1


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """The optimizer of a run of ``steps`` steps."""
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=config.learning_rate,
        warmup_steps=min(config.warmup_steps, steps - 1),
        decay_steps=steps,
        end_value=FINAL_SHARE * config.learning_rate,
    )
    return optax.adamw(schedule, b1=0.9, b2=0.95, weight_decay=config.weight_decay)
