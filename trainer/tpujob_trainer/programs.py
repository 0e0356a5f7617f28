"""The compiled programs of a run: initial state, one step, copy and digest of a state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpujob_trainer import sharding, step
from tpujob_trainer.config import TrainerConfig
from tpujob_trainer.digest import make_digest, make_shares
from tpujob_trainer.executables import Compiled, ExecutableCache, fingerprint


class Programs:
    """Compiles what is asked for, from shapes alone, or takes it from the cache.

    Shapes carry explicit shardings, so that a fresh state and a restored one run
    the very same program.
    """

    def __init__(self, config: TrainerConfig, mesh: Mesh, cache_directory: str) -> None:
        self._config, self._mesh = config, mesh
        self.state = step.abstract_state(config, mesh)
        self.rows = step.abstract_rows(config, mesh)
        #: Equal in processes that run the very same programs at the same place of the world.
        self.key = fingerprint(config, dict(mesh.shape))
        self._cache = ExecutableCache(cache_directory, self.key, list(mesh.devices.flat))

    def init(self) -> Compiled:
        """``() -> state``."""
        return self._compile(
            "init", lambda: step.init_state(self._config), (), _shardings(self.state)
        )

    def rows_of(self, length: int) -> Any:
        """What ``train(length)`` takes as rows."""
        return step.abstract_rows(self._config.at_length(length), self._mesh)

    def train(self, length: int = 0) -> Compiled:
        """``(state, rows) -> (state, metrics)``; the state is donated.

        Args:
            length: of the rows, which is one of the buckets'; 0: sequenceLength.
        """
        config = self._config.at_length(length or self._config.sequence_length)

        def train_step(state: step.State, rows: Any) -> tuple[step.State, step.Metrics]:
            tokens, segments = rows if config.has_segments else (rows, None)
            return step.train_step(state, tokens, config, segments)

        is_bucket = config.sequence_length != self._config.sequence_length
        name = f"train-{length}" if is_bucket else "train"
        arguments = (self.state, self.rows_of(config.sequence_length))
        out = (_shardings(self.state), sharding.named(self._mesh))
        return self._compile(name, train_step, arguments, out, donate=(0,))

    def digest(self) -> Compiled:
        """``(state) -> uint32 per leaf``."""
        digest = make_digest(self.state, self._mesh)
        return self._compile("digest", digest, (self.state,), sharding.named(self._mesh))

    def shares(self) -> Compiled:
        """``(state) -> uint32 per device and leaf``; without a collective."""
        rows = NamedSharding(self._mesh, PartitionSpec(self._mesh.axis_names))
        return self._compile("shares", make_shares(self.state, self._mesh), (self.state,), rows)

    def copy(self) -> Compiled:
        """``(state) -> state`` in memory of its own, on the devices."""

        def copy(state: step.State) -> Any:
            return jax.tree.map(jnp.copy, state)

        return self._compile("copy", copy, (self.state,), _shardings(self.state))

    def _compile(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        out_shardings: Any,
        donate: tuple[int, ...] = (),
    ) -> Compiled:
        def lower() -> jax.stages.Lowered:
            with jax.set_mesh(self._mesh):
                jitted = jax.jit(function, out_shardings=out_shardings, donate_argnums=donate)
                return jitted.lower(*arguments)

        return self._cache.compile(name, lower)


def _shardings(abstract: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.sharding, abstract)
