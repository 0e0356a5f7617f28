"""Both tiers for a training loop of your own: restored before it, and kept up after each step."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import jax

import tpujob
from tpujob_agent.protocol import USER_ERROR, Env, ExitCode, Phase
from tpujob_checkpoint import distributed
from tpujob_checkpoint.checkpoint import require_writable
from tpujob_checkpoint.distributed import World, say
from tpujob_checkpoint.ending import exit_code
from tpujob_checkpoint.origin import Origin
from tpujob_checkpoint.programs import Programs, State
from tpujob_checkpoint.saving import Saver
from tpujob_checkpoint.schedule import SaveSchedule, noticing_sigterm
from tpujob_checkpoint.settings import Settings


def _why_not(key: str, before: dict[str, Any], step: int) -> str:
    if before.get("key", key) == key:
        return ""
    return (
        f"of step {step} was saved with key {before['key']!r}, and the program says {key!r}: give "
        "the former key, or another checkpoint directory"
    )


_CHECKPOINTERS = itertools.count()


class Checkpointer:
    """Restores the newest good state, and saves what is due; every process makes the same calls.

    .. code-block:: python

        with Checkpointer(Settings.from_env(), like=state, last=STEPS) as checkpointer:
            step, state = checkpointer.restore(lambda: state)
            while step < STEPS:
                state, loss = train_step(state, batch(step + 1))
                step += 1
                tpujob.step(step, loss=float(loss))
                checkpointer.after(step, state)

    As a context it ends the process where an error is one that the agent understands: a lost
    peer (exit code 17), no good checkpoint (65), storage that is away (74), a newer world on the
    directory (75). Where there are several processes, any other error ends this one at once too,
    with its trace and 1.
    """

    def __init__(self, settings: Settings, like: State, *, last: int, key: str = "") -> None:
        """Look at the directory and at the state's shapes; nothing is read or written yet.

        Args:
            settings: where and how often.
            like: the state, or its shapes with shardings: a tree of arrays on one mesh. After
                ``jax.distributed.initialize``, if there are several processes.
            last: the step with which the run ends; always saved.
            key: of all that must be equal for a state to be continued, besides shapes and
                directory: the data, say. A snapshot of another key is not taken, and a checkpoint
                of another key is refused.

        Raises:
            ValueError: a setting cannot be meant, an array of the state lies on no mesh, or is of a
                type without digest.
            CheckpointUnusableError: the directory cannot be written.
        """
        settings.require_valid()
        require_writable(settings.directory)
        self._settings, self._last = settings, last
        # All processes make their checkpointers in the same order.
        scope = f"checkpointer-{next(_CHECKPOINTERS)}"
        self._world = World(jax.process_index(), jax.process_count(), scope=scope)
        self._exit = contextlib.ExitStack()
        self._sigterm = self._exit.enter_context(noticing_sigterm())
        snapshots = os.environ.get(Env.SNAPSHOT_DIR, "")
        programs = Programs.of(like, key)
        origin = Origin({"key": key}, functools.partial(_why_not, key))
        self._saver = Saver(
            settings, self._world, programs, last=last, snapshot_dir=snapshots, origin=origin
        )
        self._schedule: SaveSchedule | None = None

    def restore(self, otherwise: Callable[[], State]) -> tuple[int, State]:
        """The step of the newest state that is good on every process, and that state.

        Args:
            otherwise: makes the first state, which is of step 0.

        Raises:
            CheckpointBadError: there are checkpoints, and none is good.
            CheckpointUnusableError: they belong to a state of other shapes.
        """
        tpujob.phase(Phase.RESTORE)
        restored = self._saver.restore(tpujob.step_ceiling())
        tpujob.restored(restored.step)
        self._schedule = SaveSchedule(
            self._settings,
            self._world,
            start=restored.step,
            last=self._last,
            last_snapshot=self._saver.last_snapshot,
            wants_to_leave=self._sigterm.is_set,
        )
        return restored.step, otherwise() if restored.state is None else restored.state

    def after(self, step: int, state: State) -> None:
        """Save what is due after a step; the state may be donated to the next one.

        Raises:
            SystemExit: this host has to go, and all have saved: with exit code 42.
            Exception: whatever went wrong with the last checkpoint.
        """
        assert self._schedule, "restore first"
        self._saver.raise_if_failed()
        due = self._schedule.due(step)
        if due.any:
            tpujob.save_blocked(self._saver.save(step, state, due))
        if due.leave:
            self._saver.wait()
            say(self._world, f"asked to leave: saved step {step}")
            distributed.leave(self._world)
            raise SystemExit(ExitCode.PREEMPTED)

    def close(self) -> None:
        """Wait until all that was saved is written.

        Raises:
            Exception: whatever went wrong with the last checkpoint.
        """
        try:
            self._saver.wait()
        finally:
            self._saver.close()
            self._exit.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None or isinstance(error, SystemExit):
                self.close()
        except Exception as late:
            self._end_if_it_must(late)
            raise
        if isinstance(error, Exception):
            self._end_if_it_must(error)

    def _end_if_it_must(self, error: Exception) -> None:
        """End the process, unless Python can: its exit, and JAX's, wait for peers that are gone."""
        code = exit_code(self._world, error)
        if code is not None:
            print(f"{type(error).__name__}: {str(error)[:500]}", file=sys.stderr)
        elif self._world.num_processes > 1:
            code = USER_ERROR
            traceback.print_exception(error)
        else:
            return
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
