"""Does the step fit, what does it send, how fast can it be: asked of the real TPU compiler."""

from __future__ import annotations

import dataclasses
import re
import time
from typing import Any

import jax

from tpujob_ahead import collectives
from tpujob_ahead.roofline import Roofline, roofline
from tpujob_ahead.target import Target, devices_of
from tpujob_ahead.work import matmul_flops
from tpujob_checkpoint.programs import bytes_per_device
from tpujob_trainer import flops, topology
from tpujob_trainer.config import TrainerConfig
from tpujob_trainer.programs import Programs

#: The compiler says it in one of two ways; both count arguments too.
_TOO_MUCH = re.compile(r"(?:required for HLO temporaries \(|Used )(\d+(?:\.\d+)?)([KMGT]?)\b")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """What one JAX device has to hold at once, in bytes."""

    arguments: int
    temporaries: int
    output: int  # beyond the arguments whose buffers it takes over
    code: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.arguments + self.temporaries + self.output + self.code


@dataclasses.dataclass(frozen=True, slots=True)
class Fit:
    """The compiler's answer for one configuration on one target."""

    target: Target
    config: TrainerConfig
    mesh: dict[str, int]
    memory: Memory
    flops: float  # of a step, over all chips
    compile_s: float
    traffic: list[dict[str, Any]]  # by mesh axes and kind; empty if it does not fit
    roofline: Roofline | None  # None if it does not fit

    @property
    def is_fitting(self) -> bool:
        """Whether the compiler accepted the program."""
        return self.roofline is not None

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        estimate = self.roofline
        return {
            "target": str(self.target),
            "mesh": self.mesh,
            "fits": self.is_fitting,
            "hbmBytes": self.target.chip.hbm_bytes,
            "memory": {**dataclasses.asdict(self.memory), "total": self.memory.total},
            "flopsPerChip": self.flops / self.target.chips,
            "modelFlopsPerChip": _model_flops(self.config) / self.target.chips,
            "compileSeconds": round(self.compile_s, 1),
            "collectives": self.traffic,
            "upperBound": estimate and estimate.to_json(),
        }


def check(config: TrainerConfig, target: Target) -> Fit:
    """Compile the train step for the target and read off what it needs.

    Raises:
        ShardingError: sizes and devices do not fit together.
        NoCompilerError: the compiler does not know the slices.
    """
    mesh = topology.mesh_of(config, devices_of(target), target.slices)
    programs = Programs(config, mesh, "")
    started = time.perf_counter()
    traced = programs.trace("train")
    performed = matmul_flops(traced.jaxpr.jaxpr)
    try:
        with jax.set_mesh(mesh):
            compiled = traced.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        memory = _too_much(error, programs)
        compile_s = time.perf_counter() - started
        return Fit(target, config, dict(mesh.shape), memory, performed, compile_s, [], None)
    compile_s = time.perf_counter() - started
    found = collectives.collectives(compiled.as_text())
    memory = _memory(compiled.memory_analysis())
    within = topology.within_slice(mesh.devices, target.slices)
    estimate = roofline(
        target.chip,
        chips=target.chips,
        flops=performed,
        model_flops=_model_flops(config),
        hbm_bytes=memory.arguments + memory.output + 2 * memory.temporaries,
        found=found,
        mesh=within,
    )
    shape = dict(zip(mesh.axis_names, within.shape, strict=True))
    traffic = [
        {"axes": axes, "kind": kind, "bytes": int(sent), "count": count}
        for axes, kind, sent, count in collectives.by_axes(found, shape)
    ]
    return Fit(target, config, dict(mesh.shape), memory, performed, compile_s, traffic, estimate)


def _model_flops(config: TrainerConfig) -> float:
    return flops.flops_per_token(config) * config.global_batch * config.sequence_length


def _memory(stats: Any) -> Memory:
    return Memory(
        arguments=stats.argument_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        output=stats.output_size_in_bytes - stats.alias_size_in_bytes,
        code=stats.generated_code_size_in_bytes,
    )


def _too_much(error: jax.errors.JaxRuntimeError, programs: Programs) -> Memory:
    """What the compiler said it needs; any other error is passed on."""
    said = _TOO_MUCH.search(str(error))
    if not said:
        raise error
    arguments = bytes_per_device((programs.state, programs.rows))
    total = int(float(said[1]) * _UNITS[said[2]])
    return Memory(arguments, max(0, total - arguments), 0, 0)
