"""``python -m bench step``: tokens a second of a training step, beside NanoDO's in the same run.

On a GPU the model has 1.3 billion weights and the model FLOPs utilisation is printed too.
"""

from __future__ import annotations

import dataclasses
import importlib
import statistics
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bench.figures import machine, show
from tpujob_trainer import config as configs
from tpujob_trainer import flops, topology
from tpujob_trainer.config import TrainerConfig
from tpujob_trainer.programs import Programs

_WARM_UP = 3
_HOW_TO_GET = (
    "no peer: clone https://github.com/google-deepmind/nanodo, install flax beside this project, "
    "and pass --nanodo DIR"
)

#: Dispatches a step on rows of tokens, and returns its loss, still on the device.
Step = Callable[[np.ndarray[Any, np.dtype[np.int32]]], jax.Array]


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """What both sides train: equal widths, and as many weights in matrix products."""

    d_model: int
    layers: int
    heads: int
    d_ff: int  # of SwiGLU
    d_ff_of_two: int  # of NanoDO's GELU, with no more weights in its two matrices than our three
    vocab: int
    batch: int
    length: int
    steps: int  # in one timed run
    bar: float  # tokens a second, ours over NanoDO's


SMALL = Size(256, 6, 4, 688, 1024, 4096, 8, 128, 8, 1.05)
LARGE = Size(2048, 24, 16, 5504, 8192, 32_768, 8, 2048, 20, 1.45)


def our_config(size: Size) -> TrainerConfig:
    """The configuration of our side."""
    return configs.load(
        {
            "model": {
                "dModel": size.d_model,
                "layers": size.layers,
                "heads": size.heads,
                "kvHeads": size.heads,
                "dFF": size.d_ff,
                "vocab": size.vocab,
                "tiedEmbeddings": size is SMALL,  # as NanoDO's are
            },
            "mesh": {"slice": 1, "fsdp": -1},
            "globalBatch": size.batch,
            "sequenceLength": size.length,
            "steps": 1000,
            "checkpoint": {"directory": "unused"},
        }
    )


def our_step(config: TrainerConfig) -> Step:
    """Our program on one device, as the trainer runs it."""
    mesh = topology.make_mesh({"slice": 1, "fsdp": 1, "context": 1, "tensor": 1}, jax.devices()[:1])
    programs = Programs(config, mesh, "")
    call = programs.train().call
    state = programs.init().call()

    def step(rows: np.ndarray[Any, np.dtype[np.int32]]) -> jax.Array:
        nonlocal state
        state, metrics = call(state, jax.device_put(rows, programs.rows.sharding))
        loss: jax.Array = metrics["loss"]
        return loss

    return step


def nanodo_step(directory: Path, size: Size) -> Step:
    """NanoDO's model, loss and optimizer in Flax's train state.

    Its internal metrics and gradient accumulation are left out: both only cost it time.
    """
    sys.path.insert(0, str(directory))
    for name in ("tensorflow_datasets", "sentencepiece", "ml_collections"):
        # Imported there by modules of which the step needs other parts.
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["sentencepiece"].__dict__.setdefault("SentencePieceProcessor", object)
    model, loss, optimizer = (
        importlib.import_module(f"nanodo.{name}") for name in ("model", "loss", "optimizer")
    )
    train_state = importlib.import_module("flax.training.train_state")
    dtype = "bfloat16" if jax.default_backend() == "gpu" else "float32"
    module = model.TransformerDo(
        model.DoConfig(
            D=size.d_model,
            H=size.heads,
            L=size.length,
            N=size.layers,
            V=size.vocab,
            F=size.d_ff_of_two,
            dtype=dtype,
            fsdp_enabled=False,
        )
    )
    options = _Options(
        optimizer="adamw",
        peak_learning_rate=3e-3,
        init_learning_rate=0.0,
        final_learning_rate=3e-4,
        warmup_steps=20,
        num_train_steps=1000,
        weight_decay=0.1,
        clip_by_global_norm=1.0,
    )
    transform = optimizer.optax.chain(
        optimizer.optax.clip_by_global_norm(1.0),
        optimizer._get_base_optimizer(options),  # noqa: SLF001 - without its MultiSteps
    )

    @jax.jit
    def init() -> Any:
        params = module.init(jax.random.key(0), np.zeros((1, size.length), np.int32))["params"]
        return train_state.TrainState.create(apply_fn=module.apply, params=params, tx=transform)

    def update(state: Any, rows: jax.Array) -> tuple[Any, jax.Array]:
        objective = loss.get_default_loss_fn(rows, state.apply_fn, options)
        (value, _), grads = jax.value_and_grad(objective, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads), value

    state = init()
    update = jax.jit(update, donate_argnums=0)

    def step(rows: np.ndarray[Any, np.dtype[np.int32]]) -> jax.Array:
        nonlocal state
        # It drops the last target, where ours reads one token more.
        state, value = update(state, jax.device_put(rows[:, :-1]))
        return value

    return step


class _Options(dict[str, Any]):
    """The part of ``ConfigDict`` that NanoDO's step uses."""

    __getattr__ = dict.__getitem__


def seconds(step: Step, size: Size) -> float:
    """Seconds a step over one run; the next one is dispatched before the last loss is read."""
    random = np.random.default_rng(0)
    batches = [
        random.integers(0, size.vocab, (size.batch, size.length + 1), np.int32) for _ in range(4)
    ]
    float(step(batches[0]))
    started = time.perf_counter()
    pending = None
    for number in range(size.steps):
        following = step(batches[number % len(batches)])
        if pending is not None:
            float(pending)
        pending = following
    loss = float(pending) if pending is not None else 0.0
    if not np.isfinite(loss):
        raise SystemExit(f"the loss became {loss}: the times mean nothing")
    return (time.perf_counter() - started) / size.steps


def run(repeat: int, nanodo: str = "") -> None:
    """Time both sides by turns, ``repeat`` times; print tokens a second and their ratio."""
    size = LARGE if jax.default_backend() == "gpu" else SMALL
    config = our_config(size)
    kind = jax.devices()[0].device_kind
    print(f"{machine()}, {kind}; {dataclasses.asdict(size)}", flush=True)
    sides = {"ours": our_step(config)}
    if nanodo:
        sides["nanodo"] = nanodo_step(Path(nanodo), size)
    else:
        print(_HOW_TO_GET, flush=True)
    for step in sides.values():
        for _ in range(_WARM_UP):
            seconds(step, dataclasses.replace(size, steps=1))
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeat):
        for name, step in sides.items():
            taken[name].append(seconds(step, size))
    tokens = size.batch * size.length
    for name, values in taken.items():
        show(f"{name}, tokens a second", [tokens / s for s in values], "tok/s")
    if nanodo:
        ratios = [b / a for a, b in zip(taken["ours"], taken["nanodo"], strict=True)]
        show(f"ours / nanodo (bar: at least {size.bar})", ratios, "x")
    utilisation = flops.mfu(config, jax.devices()[:1], statistics.median(taken["ours"]))
    if utilisation is not None:
        show("model FLOPs utilisation (bar: at least 52 %)", [100 * utilisation], "%")
