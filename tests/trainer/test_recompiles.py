"""A program that is compiled again is told with the shapes that caused it."""

from __future__ import annotations

import jax
import numpy as np

from tpujob_trainer.recompiles import RecompileWatch


def test_recompilation_is_told_with_its_shapes() -> None:
    """Nothing is told before the first step, of known shapes, or of new programs."""
    told: list[tuple[str, str, float]] = []
    watch = RecompileWatch(lambda *what: told.append(what))

    def doubled(x: jax.Array) -> jax.Array:
        return x * 2

    def halved(x: jax.Array) -> jax.Array:
        return x / 2

    program = jax.jit(doubled)
    program(np.ones((3, 4), np.float32))
    program(np.ones((3, 5), np.float32))
    watch.arm()
    program(np.ones((3, 4), np.float32))
    jax.jit(halved)(np.ones((3, 4), np.float32))
    assert told == []
    program(np.ones((3, 6), np.float32))
    [(name, shapes, seconds)] = told
    assert "doubled" in name
    assert "float32[3,6]" in shapes
    assert seconds > 0
