"""The real train step, compiled by the real TPU compiler for every generation.

Small shapes: a compilation takes seconds of one core. ``docs/tpu-fit.md`` has the large ones.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.libtpu import slices, with_compiler
from tests.trainer.worlds import Launcher, small_config
from tpujob_agent.protocol import Env
from tpujob_ahead.check import Fit, check
from tpujob_ahead.target import target
from tpujob_trainer import config as configs
from tpujob_trainer.programs import Programs
from tpujob_trainer.topology import mesh_of

#: Enough for splash attention (rows of 128), and for every axis to have something to do.
CONFIG: dict[str, Any] = {
    "model": {"preset": "tiny", "layers": 1},
    "mesh": {"tensor": 2},
    "globalBatch": 16,
    "sequenceLength": 128,
    "checkpoint": {"directory": "c"},
}
TARGETS = [
    ("v4", "2x2x1", 1),
    ("v5e", "2x4", 1),
    ("v5p", "2x2x1", 1),
    ("v6e", "2x2", 1),
    ("v7", "2x2x1", 1),
    ("v5e", "2x2", 2),
    ("v5p", "2x2x1", 2),
]


@functools.cache
def fit_of(accelerator: str, topology: str, count: int) -> Fit:
    """The compiler's answer, once for all tests."""
    with with_compiler():
        return check(configs.load(CONFIG), target(accelerator, topology, count))


@pytest.mark.parametrize(("accelerator", "topology", "count"), TARGETS)
def test_the_step_compiles_and_fits(accelerator: str, topology: str, count: int) -> None:
    """It fits, the state's buffers are given to the result, and the estimate is below the peak."""
    fit = fit_of(accelerator, topology, count)
    assert fit.is_fitting
    assert 0 < fit.memory.total < fit.target.chip.hbm_bytes
    assert fit.memory.arguments > 100_000
    assert fit.memory.output < 0.05 * fit.memory.arguments, "the state is not donated"
    assert fit.roofline
    assert 0 < fit.roofline.mfu < 1


@pytest.mark.parametrize(("accelerator", "topology", "count"), TARGETS)
def test_collectives_are_on_the_axes_they_belong_to(
    accelerator: str, topology: str, count: int
) -> None:
    """Weights are gathered over fsdp alone; tensor and slices only sum; nothing else is sent."""
    fit = fit_of(accelerator, topology, count)
    kinds: dict[tuple[str, ...], set[str]] = {}
    for one in fit.traffic:
        kinds.setdefault(one["axes"], set()).add(one["kind"])
    assert "all-gather" in kinds["fsdp",]
    assert kinds["tensor",] <= {"all-reduce", "reduce-scatter"}
    assert kinds.get(("slice",), set()) == ({"all-reduce"} if count > 1 else set())
    assert set(kinds) <= {("slice",), ("fsdp",), ("tensor",)}


def test_slices_exchange_no_more_than_gradients() -> None:
    """What crosses the data-centre network is a shard of the gradients, and no parameter."""
    fit = fit_of("v5p", "2x2x1", 2)
    (crossing,) = [one for one in fit.traffic if one["axes"] == ("slice",)]
    parameters = fit.memory.arguments / 3  # of the state: weights and two moments, float32
    assert crossing["bytes"] <= 1.1 * parameters


def test_attention_is_the_splash_kernel() -> None:
    """On a TPU the traced step calls the kernel, on a machine without one too."""
    config = configs.load(CONFIG)
    _, devices = slices("v5e", "2x4")
    mesh = mesh_of(config, devices, 1)
    traced = Programs(config, mesh, "").trace("train")
    assert "splash" in str(traced.jaxpr)


def test_programs_compiled_ahead_are_loaded(launcher: Launcher, tmp_path: Path) -> None:
    """What two processes compile ahead, two trainers of that world load, and say so."""
    config, out = small_config(steps=1), tmp_path / "programs"
    env = {Env.CACHE_DIR: str(out)}
    arguments = ("compile", "--config", f"env:{Env.TRAINER_CONFIG}", "--out", str(out))
    ahead = launcher.start(config, processes=2, devices=2, env=env, arguments=arguments)
    assert [one.wait() for one in ahead] == [0, 0], ahead[0].output()
    assert "train compiled in" in ahead[0].output()
    first, second = launcher.start(config, processes=2, devices=2, env=env)
    assert (first.wait(), second.wait()) == (0, 0), first.output()
    assert "train step loaded from the cache" in first.output()
