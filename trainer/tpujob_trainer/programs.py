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

    def train(self) -> Compiled:
        """``(state, rows) -> (state, metrics)``; the state is donated."""

        def train_step(state: step.State, rows: jax.Array) -> tuple[step.State, step.Metrics]:
            return step.train_step(state, rows, self._config)

        out = (_shardings(self.state), sharding.named(self._mesh))
        return self._compile("train", train_step, (self.state, self.rows), out, donate=(0,))

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
