"""What to change when a step does not fit: the nearest changes first, each really compiled."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

from tpujob_ahead.check import Fit
from tpujob_ahead.target import Target, target
from tpujob_tpu.catalogue import chips_of
from tpujob_trainer.config import REST, TrainerConfig
from tpujob_trainer.sharding import RULES, ShardingError

#: Larger topologies that are tried.
_LARGER = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A configuration and target near to one that does not fit, and what is different."""

    words: str
    config: TrainerConfig
    target: Target


def nearest_fit(
    fit: Fit, check: Callable[[TrainerConfig, Target], Fit], *, tries: int
) -> tuple[Change, Fit] | None:
    """The first change that fits, or None.

    Args:
        fit: what does not.
        check: compiles a configuration for a target.
        tries: how many changes are compiled at most.
    """
    tried = 0
    for change in changes(fit):
        if tried >= tries:
            return None
        try:
            found = check(change.config, change.target)
        except ShardingError:
            continue  # the sizes do not divide that way, which costs no compilation
        tried += 1
        if found.is_fitting:
            return change, found
    return None


def changes(fit: Fit) -> Iterator[Change]:
    """Changes in the order of what they cost; activations only if the state itself fits."""
    config, where = fit.config, fit.target
    over_fsdp = dataclasses.replace(config.mesh, fsdp=REST, context=1, tensor=1)
    if over_fsdp != config.mesh and fit.mesh["context"] * fit.mesh["tensor"] > 1:
        yield Change("mesh.fsdp -1, tensor and context 1", _with(config, mesh=over_fsdp), where)
    if fit.memory.arguments < where.chip.hbm_bytes:
        yield from _of_activations(fit)
    larger = [
        name
        for name in sorted(where.shape.generation.topologies, key=chips_of)
        if chips_of(name) > where.shape.chips
    ]
    for name in larger[:_LARGER]:
        bigger = target(where.shape.generation.name, name, where.slices)
        yield Change(f"--topology {name}", config, bigger)


def _of_activations(fit: Fit) -> Iterator[Change]:
    config, where = fit.config, fit.target
    for remat in ("dots", "full"):
        if config.model.remat in ("none", "dots") and config.model.remat != remat:
            changed = _with(config, model=dataclasses.replace(config.model, remat=remat))
            yield Change(f"model.remat {remat}", changed, where)
    leanest = dataclasses.replace(config.model, remat="full", scan_layers=True)
    if config.model != leanest:
        config = _with(config, model=leanest)
        yield Change("model.remat full, model.scanLayers true", config, where)
    also = "" if config.model == fit.config.model else " with model.remat full, scanLayers true"
    rows = config.global_batch // math.prod(fit.mesh[axis] for axis in RULES["batch"])
    for count in _divisors_above(rows, config.accumulation):
        changed = _with(config, accumulation=count)
        yield Change(f"accumulation {count}{also}", changed, where)


def _divisors_above(number: int, least: int) -> list[int]:
    return [d for d in range(least + 1, number + 1) if number % d == 0]


def _with(config: TrainerConfig, **parts: object) -> TrainerConfig:
    return dataclasses.replace(config, **parts)  # type: ignore[arg-type] # fields of the class
