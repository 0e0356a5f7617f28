"""The compiled programs of a run: initial state, one step, copy and digest of a state."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from tpujob_checkpoint.programs import Programs as StatePrograms
from tpujob_checkpoint.programs import copying, digesting, sharing
from tpujob_trainer import fields, sharding, step
from tpujob_trainer.config import TrainerConfig
from tpujob_trainer.executables import Compiled, ExecutableCache
from tpujob_trainer.fingerprint import Fingerprint


@dataclasses.dataclass(frozen=True, slots=True)
class _Program:
    """A pure function, the shapes it is compiled for, and how its results are split."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    out_shardings: Any
    donate: tuple[int, ...] = ()


class Programs:
    """Compiles what is asked for, from shapes alone, or takes it from the cache.

    Shapes carry explicit shardings, so that a fresh state and a restored one run
    the very same program.
    """

    def __init__(
        self,
        config: TrainerConfig,
        mesh: Mesh,
        cache_directory: str,
        shared: str = "",
        job_key: str = "",
    ) -> None:
        """Compile nothing yet; the last three are for ``ExecutableCache``."""
        self._config, self._mesh = config, mesh
        self.state = step.abstract_state(config, mesh)
        self.rows = step.abstract_rows(config, mesh)
        fingerprint = Fingerprint.of(config, mesh)
        #: Equal wherever the very same programs run.
        self.key = fingerprint.key
        devices = list(mesh.devices.flat)
        self._cache = ExecutableCache(cache_directory, fingerprint, devices, shared, job_key)

    def init(self) -> Compiled:
        """``() -> state``."""
        return self.compile("init")

    def rows_of(self, length: int) -> Any:
        """What ``train(length)`` takes as rows."""
        return step.abstract_rows(self._config.at_length(length), self._mesh)

    def train(self, length: int = 0) -> Compiled:
        """``(state, rows) -> (state, metrics)``; the state is donated.

        Args:
            length: of the rows, which is one of the buckets'; 0: sequenceLength.
        """
        return self.compile(self._name_of(length or self._config.sequence_length))

    def _name_of(self, length: int) -> str:
        return "train" if length == self._config.sequence_length else f"train-{length}"

    @property
    def names(self) -> list[str]:
        """All programs of a run, the steps of its buckets included."""
        steps = [self._name_of(length) for length in self._config.lengths]
        return ["init", *steps, "copy", "shares", "digest"]

    @property
    def of_state(self) -> StatePrograms:
        """What saving and restoring need of them."""
        data = json.dumps(fields.to_json(self._config.data), sort_keys=True)
        return StatePrograms(
            self.state,
            f"{self.key} {data}",
            copy=lambda: self.compile("copy").call,
            shares=lambda: self.compile("shares").call,
            digest=lambda: self.compile("digest").call,
        )

    def compile(self, name: str) -> Compiled:
        """The program of that name, one of ``names``."""
        return self._cache.compile(name, lambda: self._lower(name))

    def keep(self, name: str) -> Compiled:
        """Compile the program for devices that are not here, unless the cache has it."""
        return self._cache.keep(name, lambda: self._lower(name))

    def _lower(self, name: str) -> jax.stages.Lowered:
        with jax.set_mesh(self._mesh):
            lowered: jax.stages.Lowered = self.trace(name).lower()
        return lowered

    def trace(self, name: str) -> jax.stages.Traced:
        """The program of that name, traced only."""
        program = self._program(name)
        with jax.set_mesh(self._mesh):
            jitted = jax.jit(
                program.function,
                out_shardings=program.out_shardings,
                donate_argnums=program.donate,
            )
            return jitted.trace(*program.arguments)

    def _program(self, name: str) -> _Program:
        state = self.state
        match name:
            case "init":
                return _Program(lambda: step.init_state(self._config), (), _shardings(state))
            case "copy":
                return _Program(*copying(state))
            case "shares":
                return _Program(*sharing(state))
            case "digest":
                return _Program(*digesting(state))
        return self._step(int(name.partition("-")[2] or self._config.sequence_length))

    def _step(self, length: int) -> _Program:
        config = self._config.at_length(length)

        def train_step(state: step.State, rows: Any) -> tuple[step.State, step.Metrics]:
            tokens, segments = rows if config.has_segments else (rows, None)
            return step.train_step(state, tokens, config, segments)

        out = (_shardings(self.state), sharding.named(self._mesh))
        return _Program(train_step, (self.state, self.rows_of(length)), out, donate=(0,))


def _shardings(abstract: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.sharding, abstract)
