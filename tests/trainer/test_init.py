"""Initial weights: normal, independent of each other, and no two from one run of numbers."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.worlds import SMALL_MODEL
from tpujob_trainer import config as configs
from tpujob_trainer import model
from tpujob_trainer.model import Weight
from tpujob_trainer.presets import PRESETS, ModelConfig

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def _weights(c: ModelConfig) -> list[Weight]:
    found: list[Weight] = jax.tree.leaves(model.weights(c))
    return [weight for weight in found if weight.stddev]


def _length(weight: Weight) -> int:
    """Numbers of one of its streams."""
    return math.prod(weight.shape) // len(weight.draws)


@pytest.mark.parametrize("name", PRESETS)
def test_no_stream_is_longer_than_its_counter(name: str) -> None:
    """A number comes once in a stream: also in the largest weight of the largest model."""
    assert max(_length(weight) for weight in _weights(PRESETS[name])) <= 2**32


@pytest.mark.parametrize("name", PRESETS)
def test_all_streams_have_keys_of_their_own(name: str) -> None:
    """Both permutations of every stream are another stream's for no weight and no seed nearby."""
    draws = [draw for weight in _weights(PRESETS[name]) for draw in weight.draws]
    assert len(set(draws)) == len(draws)
    keys = [model.stream_keys(seed, draw) for seed in (0, 1, 2**40) for draw in draws]
    pairs = [pair for first, second, *rest in keys for pair in ((first, second), tuple(rest))]
    assert len(set(pairs)) == len(pairs)


def test_streams_share_no_run() -> None:
    """Wherever a number of one stream is found in another, the next numbers are different.

    Computed for the whole range of the counter: a number's place in the other stream is found by
    going back through the permutation.
    """
    keys = np.array([model.stream_keys(1, draw) for draw in range(8)], np.uint32)
    counters = np.random.default_rng(0).integers(0, 2**32 - 1, 20_000, np.uint32)
    for (inner, outer, *_), (inner2, outer2, *_) in itertools.permutations(keys, 2):
        here, following = (
            np.asarray(_back(model.permuted(jnp.asarray(at), inner, outer), inner2, outer2))
            for at in (counters, counters + np.uint32(1))
        )
        steps = (following - here).view(np.int32)
        # By chance 20,000 pairs hold a run of two with a probability of 1e-5.
        assert not np.isin(steps, [-1, 1]).any()


def _back(number: jax.Array, inner: np.uint32, outer: np.uint32) -> jax.Array:
    """The counter at which a stream gives a number."""
    return _unmixed(_unmixed(number) ^ outer) ^ inner


def _unmixed(x: jax.Array) -> jax.Array:
    """The inverse of ``digest.mix32``."""
    x ^= x >> 16
    x *= jnp.uint32(pow(0xC2B2AE35, -1, 2**32))
    x ^= (x >> 13) ^ (x >> 26)
    x *= jnp.uint32(pow(0x85EBCA6B, -1, 2**32))
    return x ^ (x >> 16)


@pytest.fixture(scope="module")
def drawn() -> dict[str, Array]:
    """All weights of a small model as vectors, each with a spread of one."""
    raw = {"model": {**SMALL_MODEL, "layers": 4}, "checkpoint": {"directory": "c"}}
    c = configs.load(raw).model
    params = jax.jit(lambda: model.init_params(c, 1))()
    table = jax.tree_util.tree_flatten_with_path(model.weights(c))[0]
    pairs = zip(table, jax.tree.leaves(params), strict=True)
    return {
        jax.tree_util.keystr(path): np.asarray(value).ravel() / weight.stddev
        for (path, weight), value in pairs
        if weight.stddev
    }


def test_every_weight_is_normal(drawn: dict[str, Array]) -> None:
    """Mean, variance, skew and kurtosis within five standard errors."""
    for name, values in drawn.items():
        size = values.size
        moments = [
            values.mean(),
            (values**2).mean() - 1,
            (values**3).mean(),
            (values**4).mean() - 3,
        ]
        errors = [math.sqrt(variance / size) for variance in (1, 2, 15, 96)]
        for moment, error in zip(moments, errors, strict=True):
            assert abs(moment) < 5 * error, name


def test_no_two_weights_are_correlated(drawn: dict[str, Array]) -> None:
    """At no shift of one against the other, of all shifts there are."""
    for (name, one), (other_name, other) in itertools.combinations(drawn.items(), 2):
        size = min(one.size, other.size)
        spectra = [np.fft.rfft(values[:size]) for values in (one, other)]
        correlations = np.fft.irfft(spectra[0] * spectra[1].conj(), size) / size
        assert np.abs(correlations).max() < 6.5 / math.sqrt(size), (name, other_name)


def test_no_value_of_one_weight_is_found_in_another(drawn: dict[str, Array]) -> None:
    """Beyond the few that meet by chance: 32 bits make equal values rare."""
    for (name, one), (other_name, other) in itertools.combinations(drawn.items(), 2):
        shared = np.intersect1d(one, other).size
        assert shared <= 0.02 * min(one.size, other.size), (name, other_name)
