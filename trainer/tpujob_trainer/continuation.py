"""Which rows a run has read, and whether a configuration can read the rest: exactly once, or not.

A batch follows from seed, pack, lengths, globalBatch and step. Every checkpoint keeps them, so that
a configuration that was edited is noticed. With another globalBatch the rows go on at the next one
that was not read; anything else would read some rows twice and others never, and is refused.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax

from tpujob_checkpoint.origin import Origin
from tpujob_data.manifest import Manifest
from tpujob_trainer import fields
from tpujob_trainer.config import TrainerConfig


class Start(NamedTuple):
    """Where in the order of rows a run counts from: after ``step``, ``row`` comes next."""

    step: int = 0
    row: int = 0

    def first_row(self, step: int, global_batch: int) -> int:
        """The first row that ``step`` reads; steps count from 1."""
        return self.row + (step - 1 - self.step) * global_batch


#: What the order of rows depends on, by the name that a user knows it by.
_ORDER = {"seed": "seed", "lengths": "sequenceLength and data.buckets", "pack": "the packed text"}


def origin_of(config: TrainerConfig, manifest: Manifest) -> Origin:
    """What a run keeps with its states, and which states it can continue."""
    now = {
        "seed": config.seed,
        "lengths": list(config.lengths),
        "pack": manifest.sha256,
        "globalBatch": config.global_batch,
        "start": list(Start()),
        "config": fields.to_json(config),
        "jax": jax.__version__,
    }
    return Origin(now, functools.partial(_why_not, now))


def _why_not(now: dict[str, Any], before: dict[str, Any], step: int) -> str:
    changed = [name for name in _ORDER if before.get(name, now[name]) != now[name]]
    is_exact = (
        len(now["lengths"]) == 1
        or before.get("globalBatch", now["globalBatch"]) == (now["globalBatch"])
    )
    if not is_exact:
        changed.append("globalBatch")
    if not changed:
        return ""
    shown = "; ".join(
        f"{_ORDER.get(name, name)} was {before[name]} and is {now[name]}" for name in changed
    )
    return (
        f"of step {step} cannot be continued with this configuration: {shown}. Rows would be "
        "read twice or never. Set it back, or start in another checkpoint directory"
    )


def start_of(before: dict[str, Any], step: int, global_batch: int) -> Start:
    """Where the rows of a restored run go on.

    Args:
        before: what was kept with the state; empty: nothing.
        step: of the state.
        global_batch: of this run.
    """
    if not before:
        return Start()
    start, former = Start(*before["start"]), int(before["globalBatch"])
    if former == global_batch:
        return start
    return Start(step, start.first_row(step + 1, former))
