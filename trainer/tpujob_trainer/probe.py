"""A fixed piece of work on this host's own devices, about once a second.

All hosts of a step end it together, so that the time of a step says nothing about a slow
device; the time of work that no other host takes part in does.
"""

from __future__ import annotations

import dataclasses
import time

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
        # One program for all of them, as each compilation holds up the step.
        mesh = jax.sharding.Mesh(np.array(devices), ("device",))
        self._each = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("device"))
        self._program = jax.jit(jax.vmap(self._work), out_shardings=self._each)
        shape = (self._size.width, self._size.width)
        weights = np.random.default_rng(0).standard_normal(shape, np.float32)
        weights = (weights / self._size.width**0.5).astype(jnp.bfloat16)
        self._host = np.broadcast_to(weights, (len(devices), *shape))
        self._weights: jax.Array | None = None

    def measure(self) -> float:
        """Seconds of one probe; the devices must have nothing else to do."""
        if self._weights is None:
            self._weights = jax.device_put(self._host, self._each)
            self._once(self._weights)  # compiles
        begun = time.perf_counter()
        self._once(self._weights)
        return time.perf_counter() - begun

    def tell(self) -> None:
        """Measure, and tell the agent."""
        tpujob.probe(self.measure())

    def _once(self, weights: jax.Array) -> None:
        """From the host's memory onto every device, through the layers, until all are done."""
        jax.block_until_ready(self._program(jax.device_put(self._host, self._each), weights))

    def _work(self, x: jax.Array, weights: jax.Array) -> jax.Array:
        for _ in range(self._size.rounds):
            y = jax.nn.gelu(x @ weights)
            x += y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + 1e-6)
        return jnp.sum(x, dtype=jnp.float32)
