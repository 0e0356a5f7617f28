"""The world of one generation: joining it, agreeing on small facts, leaving it.

This is the only module that touches ``jax._src``: JAX has no public way to
exchange a string between processes without compiling a collective.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Mapping
from typing import Any

import jax
from jax._src import distributed as jax_distributed

from tpujob_agent.peers import is_peer_lost
from tpujob_agent.protocol import Env
from tpujob_agent.runs import await_leader

INIT_TIMEOUT_S = 60
#: JAX's default of 100 s leaves the survivors of a frozen peer waiting for 90 s. Agents notice what
#: dies or hangs long before; 10 s ended worlds whose hosts were merely busy with compiling.
HEARTBEAT_TIMEOUT_S = 30
#: Peers may still pack data or compile cold while this process already waits.
AGREE_TIMEOUT_S = 600.0
SHUTDOWN_TIMEOUT_S = 20


class PeerLostError(RuntimeError):
    """Another process of the world is gone or does not answer."""


@dataclasses.dataclass(frozen=True, slots=True)
class World:
    """This process's place among the processes of a generation."""

    process_id: int = 0
    num_processes: int = 1
    num_slices: int = 1
    coordinator: str = ""  # host:port, empty for a single process
    scope: str = ""  # of what is agreed upon: users of one world must not meet each other's keys
    heartbeat_s: int = HEARTBEAT_TIMEOUT_S  # a process that is silent for longer is lost

    @property
    def is_leader(self) -> bool:
        """Whether this process does what only one may do."""
        return self.process_id == 0


def world_from(env: Mapping[str, str]) -> World:
    """The world that the agent (or any launcher that speaks JAX's variables) describes.

    Raises:
        ValueError: a variable is set but is no number, or some are missing.
    """
    coordinator = env.get(Env.JAX_COORDINATOR_ADDRESS, "")
    num_slices = _number(env, Env.NUM_SLICES, 1)
    if not coordinator:
        return World(num_slices=num_slices)
    for name in (Env.JAX_NUM_PROCESSES, Env.JAX_PROCESS_ID):
        if not env.get(name):
            raise ValueError(f"{Env.JAX_COORDINATOR_ADDRESS} is set, but {name} is not")
    return World(
        process_id=_number(env, Env.JAX_PROCESS_ID, 0),
        num_processes=_number(env, Env.JAX_NUM_PROCESSES, 1),
        num_slices=num_slices,
        coordinator=coordinator,
        heartbeat_s=max(1, _number(env, Env.HEARTBEAT_S, HEARTBEAT_TIMEOUT_S)),
    )


def say(world: World, text: str) -> None:
    """A line for people, from the leader only."""
    if world.is_leader:
        print(text, flush=True)


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    if text and not text.isdecimal():
        raise ValueError(f"{name} is {text!r}, which is no number")
    return int(text) if text else default


def join(world: World) -> None:
    """Enter the world; returns once all its processes are there.

    Raises:
        PeerLostError: they were not there within INIT_TIMEOUT_S.
    """
    # With the service on, a process blocked in a collective ignores SIGTERM.
    jax.config.update("jax_enable_preemption_service", False)
    if not world.coordinator:
        return
    if not world.is_leader and not await_leader(world.coordinator, INIT_TIMEOUT_S):
        raise PeerLostError(
            f"the leader at {world.coordinator} did not listen within {INIT_TIMEOUT_S} s"
        )
    try:
        jax.distributed.initialize(
            world.coordinator,
            world.num_processes,
            world.process_id,
            local_device_ids=None,
            cluster_detection_method="deactivate",
            initialization_timeout=INIT_TIMEOUT_S,
            heartbeat_timeout_seconds=world.heartbeat_s,
            shutdown_timeout_seconds=SHUTDOWN_TIMEOUT_S,
        )
        _guard_threads()
    except jax.errors.JaxRuntimeError as error:
        raise PeerLostError(f"the world did not come together: {error}") from error


#: Set in tests: a program over several processes that is not launched by the loop's thread is an
#: error. On CPU nothing else would show it; TPUs halt when hosts launch in different orders.
GUARD_VARIABLE = "TPUJOB_THREAD_GUARD"
_guard = contextlib.ExitStack()


def _guard_threads() -> None:
    if os.environ.get(GUARD_VARIABLE):
        _guard.enter_context(jax.thread_guard(True))


def agree(world: World, key: str, value: Any, *, timeout_s: float = AGREE_TIMEOUT_S) -> list[Any]:
    """Everybody's value, in order of process id; every process must call it.

    Args:
        world: who takes part.
        key: names this exchange; each name is used once in a generation.
        value: anything JSON can hold.
        timeout_s: how long to wait for the slowest process.

    Raises:
        PeerLostError: some process did not take part in time.
    """
    if world.num_processes == 1:
        return [value]
    key = _scoped(world, key)
    _put(f"{key}/{world.process_id}", value)
    if world.is_leader:
        deadline = time.monotonic() + timeout_s
        everybody = range(world.num_processes)
        values = [_get(f"{key}/{i}", deadline - time.monotonic()) for i in everybody]
        _put(f"{key}/all", values)
        return values
    values = _get(f"{key}/all", timeout_s)
    return list(values)


def told_by_leader(
    world: World, key: str, value: Any, *, timeout_s: float = AGREE_TIMEOUT_S
) -> Any:
    """The leader's value; the others' are ignored. Cheaper than ``agree``."""
    if world.num_processes == 1:
        return value
    key = _scoped(world, key)
    if world.is_leader:
        _put(key, value)
        return value
    return _get(key, timeout_s)


def _scoped(world: World, key: str) -> str:
    return f"{world.scope}/{key}" if world.scope else key


class Bulletin:
    """What the leader tells at certain steps, and what everybody shows the leader."""

    #: No process is this many tellings behind the leader: a step needs all of them.
    _KEPT = 4

    def __init__(self, world: World, name: str) -> None:
        self._world, self._plain_name = world, name
        self._name = _scoped(world, name)
        self._steps: list[int] = []
        self._is_raised = False
        self._mine: Any = None

    def told(self, step: int, value: Any, *, timeout_s: float = AGREE_TIMEOUT_S) -> Any:
        """The leader's value for ``step``; every process calls it for the same steps.

        Raises:
            PeerLostError: the leader does not answer.
        """
        key = f"{self._plain_name}/{step}"
        value = told_by_leader(self._world, key, value, timeout_s=timeout_s)
        self._steps.append(step)
        if len(self._steps) > self._KEPT:
            old = self._steps.pop(0)
            if self._world.is_leader and self._world.num_processes > 1:
                _client().key_value_delete(f"tpujob/{self._name}/{old}")
        return value

    def raise_hand(self) -> None:
        """Make ``is_hand_raised`` true for the leader; it stays so."""
        self._is_raised = True
        if not self._world.is_leader:
            _put(f"{self._name}/hand", value=True)

    def is_hand_raised(self) -> bool:
        """Whether any process has raised its hand; for the leader."""
        if not self._is_raised and self._world.num_processes > 1:
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # NOT_FOUND: nobody has
                self._is_raised = bool(_client().key_value_try_get(f"tpujob/{self._name}/hand"))
        return self._is_raised

    def show(self, value: Any) -> None:
        """Put up this process's value in place of its last one; from any thread."""
        self._mine = value
        if self._world.num_processes > 1:
            _put(f"{self._name}/shown/{self._world.process_id}", value)

    def shown(self) -> list[Any]:
        """Values of the processes that have put one up, in no order; for the leader."""
        if self._world.num_processes == 1:
            return [] if self._mine is None else [self._mine]
        found = _client().key_value_dir_get(f"tpujob/{self._name}/shown/")
        return [json.loads(value) for _, value in found]


def _client() -> Any:
    return jax_distributed.global_state.client


def _put(key: str, value: Any) -> None:
    try:
        _client().key_value_set(f"tpujob/{key}", json.dumps(value), allow_overwrite=True)
    except jax.errors.JaxRuntimeError as error:
        raise PeerLostError(f"the leader does not answer: {error}") from error


def _get(key: str, timeout_s: float) -> Any:
    try:
        milliseconds = max(1, int(timeout_s * 1000))
        return json.loads(_client().blocking_key_value_get(f"tpujob/{key}", milliseconds))
    except jax.errors.JaxRuntimeError as error:
        raise PeerLostError(f"no answer about {key!r} from the other processes: {error}") from error


def is_peer_loss(world: World, error: BaseException) -> bool:
    """Whether an error means that another process went away, not that this one is at fault."""
    if world.num_processes == 1:
        return False
    return isinstance(error, PeerLostError) or is_peer_lost(error)


def leave(world: World) -> None:
    """Leave a world whose work is done, with everybody else."""
    if world.num_processes == 1:
        return
    # All work is committed by now: a peer that fails in here costs nothing.
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        jax.distributed.shutdown()
