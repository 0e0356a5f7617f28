"""How many FLOPs a traced step performs, recomputation and kernels included."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr


def matmul_flops(jaxpr: Jaxpr) -> float:
    """FLOPs of all matrix multiplications, over all devices.

    Loops count as often as they run. Of a condition's branches the mean is taken: it
    is how attention kernels skip the half of their blocks that a causal mask leaves empty.
    """
    return sum(_of_equation(equation) for equation in jaxpr.eqns)


def _of_equation(equation: Any) -> float:
    parameters = equation.params
    name = equation.primitive.name
    if name == "dot_general":
        return _of_dot(equation)
    inner = [matmul_flops(part) for part in _parts(parameters)]
    if name == "cond":
        return sum(inner) / len(inner)
    return sum(inner) * _times(name, parameters)


def _of_dot(equation: Any) -> float:
    axes: tuple[int, ...] = equation.params["dimension_numbers"][0][0]
    shape: tuple[int, ...] = equation.invars[0].aval.shape
    size: int = equation.outvars[0].aval.size
    return 2.0 * size * math.prod(shape[axis] for axis in axes)


def _times(name: str, parameters: dict[str, Any]) -> int:
    """How often the inner programs of an equation run, over all devices."""
    if name == "scan":
        return int(parameters["length"])
    if name == "shard_map":
        return int(parameters["mesh"].size)  # the trainer maps over all axes
    if name == "pallas_call":
        return math.prod(parameters["grid_mapping"].grid)
    return 1


def _parts(value: Any) -> Iterator[Jaxpr]:
    """Programs among an equation's parameters."""
    if isinstance(value, ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, Jaxpr):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _parts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _parts(part)
