"""A fixed piece of work on this host's own devices, about once a second.

All hosts of a step end it together, so that the time of a step says nothing about a slow
device; the time of work that no other host takes part in does.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import tpujob

#: Seconds of training between two probes, at least.
PERIOD_S = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """How much work a probe is: a few milliseconds, or the host's share shows in its time."""

    width: int
    rounds: int


_SIZES = {"cpu": Size(128, 4)}
_ACCELERATOR = Size(2048, 32)


def stride(step_s: float) -> int:
    """A probe is made at steps that are multiples of this: a power of two, alike on all hosts."""
    steps = 1
    while steps * step_s < PERIOD_S and steps < 1 << 20:
        steps *= 2
    return steps


class Probe:
    """Shaped like a layer, as a bare matrix product misses what slows one down in practice."""

    def __init__(self) -> None:
        devices = jax.local_devices()
        self._size = _SIZES.get(devices[0].platform, _ACCELERATOR)
        self._devices = devices
        self._program: Callable[[jax.Array, jax.Array], jax.Array] | None = None
        shape = (self._size.width, self._size.width)
        weights = np.random.default_rng(0).standard_normal(shape, np.float32)
        self._host = (weights / self._size.width**0.5).astype(jnp.bfloat16)
        self._weights: list[jax.Array] = []

    def measure(self) -> float:
        """Seconds of one probe; the devices must have nothing else to do."""
        if self._program is None:
            self._program = jax.jit(self._work)
            self._weights = [jax.device_put(self._host, device) for device in self._devices]
            self._once()  # compiles
        begun = time.perf_counter()
        self._once()
        return time.perf_counter() - begun

    def tell(self) -> None:
        """Measure, and tell the agent."""
        tpujob.probe(self.measure())

    def _once(self) -> None:
        """From the host's memory onto every device, through the layers, until all are done."""
        assert self._program is not None
        results = [
            self._program(jax.device_put(self._host, weights.device), weights)
            for weights in self._weights
        ]
        jax.block_until_ready(results)

    def _work(self, x: jax.Array, weights: jax.Array) -> jax.Array:
        for _ in range(self._size.rounds):
            y = jax.nn.gelu(x @ weights)
            x += y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + 1e-6)
        return jnp.sum(x, dtype=jnp.float32)
