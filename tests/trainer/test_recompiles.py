"""A program of the steps that is compiled again is told with the shapes that caused it."""

from __future__ import annotations

import threading

import jax
import numpy as np

from tpujob_trainer.probe import Probe
from tpujob_trainer.recompiles import RecompileWatch


def _of_width(width: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.ones((3, width), np.float32)


def test_recompilation_is_told_with_its_shapes() -> None:
    """Nothing is told of the first step, of known shapes, or of new programs."""
    told: list[tuple[str, str, float]] = []
    watch = RecompileWatch(lambda *what: told.append(what))

    def doubled(x: jax.Array) -> jax.Array:
        return x * 2

    def halved(x: jax.Array) -> jax.Array:
        return x / 2

    program = jax.jit(doubled)
    with watch.stepping():
        program(_of_width(4))
        program(_of_width(5))
    watch.arm()
    with watch.stepping():
        program(_of_width(4))
        jax.jit(halved)(_of_width(4))
    assert told == []
    with watch.stepping():
        program(_of_width(6))
    [(name, shapes, seconds)] = told
    assert "doubled" in name
    assert "float32[3,6]" in shapes
    assert seconds > 0


def test_what_is_compiled_beside_the_steps_is_not_told() -> None:
    """Probes and saves compile when they are first needed, also in threads of their own."""
    told: list[str] = []
    watch = RecompileWatch(lambda name, *_: told.append(name))

    def doubled(x: jax.Array) -> jax.Array:
        return x * 2

    program = jax.jit(doubled)
    with watch.stepping():
        program(_of_width(4))
    watch.arm()
    program(_of_width(7))
    Probe().measure()
    with watch.stepping():
        saving = threading.Thread(target=lambda: program(_of_width(8)))
        saving.start()
        saving.join()
    assert told == []
    with watch.stepping():
        program(_of_width(9))
    assert len(told) == 1
