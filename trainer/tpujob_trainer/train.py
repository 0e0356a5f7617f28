"""The run of one process, from joining its world to the last committed checkpoint."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping

import jax
from jax.sharding import Mesh

import tpujob
from tpujob_agent.protocol import Env, ExitCode, Phase
from tpujob_checkpoint import checkpoint, distributed
from tpujob_checkpoint.distributed import World, say
from tpujob_checkpoint.saving import Restored, Saver
from tpujob_checkpoint.schedule import SaveSchedule, noticing_sigterm
from tpujob_data import DataError
from tpujob_data.manifest import Manifest
from tpujob_trainer import flops, telemetry, topology
from tpujob_trainer.config import TrainerConfig
from tpujob_trainer.continuation import Start, origin_of, start_of
from tpujob_trainer.executables import Compiled
from tpujob_trainer.loader import Batches, Feed, Prefetcher, prepare
from tpujob_trainer.probe import Probe, stride
from tpujob_trainer.profiler import Profiler
from tpujob_trainer.programs import Programs
from tpujob_trainer.step import Metrics, State
from tpujob_trainer.telemetry import PhaseClock, StepReport


class DivergedError(RuntimeError):
    """Too many steps in a row had a loss or gradient that is no number."""


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """What stays the same from the first step to the last."""

    config: TrainerConfig
    world: World
    mesh: Mesh
    programs: Programs
    saver: Saver
    clock: PhaseClock


def train(config: TrainerConfig, world: World) -> ExitCode:
    """Train to ``config.steps`` from the newest good state, or until asked to leave.

    Raises:
        ShardingError: sizes and devices do not fit together.
        DataError: there is no text to train on.
        CheckpointUnusableError: checkpoints cannot be written, or are of another model or data.
        CheckpointUnavailableError: the storage does not answer, or has no room.
        CheckpointBadError: checkpoints exist, and none is good.
        SupersededError: a newer world has begun on the checkpoints.
        SharedDirectoryError: another job has.
        PeerLostError: another process is gone.
        DivergedError: loss or gradient stay no number.
    """
    clock = PhaseClock(world)
    clock.enter(Phase.INIT)
    checkpoint.require_writable(config.checkpoint.directory)
    distributed.join(world)
    mesh = _mesh(config, world)
    manifest = _data(config, world)
    own = os.environ.get(Env.CACHE_DIR, "")
    job_key = os.environ.get(Env.PROGRAMS_KEY, "")
    programs = Programs(config, mesh, own, config.checkpoint.programs, job_key)
    clock.enter(Phase.RESTORE)
    origin = origin_of(config, manifest)
    saver = Saver(
        config.checkpoint,
        world,
        programs.of_state,
        last=config.steps,
        snapshot_dir=os.environ.get(Env.SNAPSHOT_DIR, ""),
        origin=origin,
    )
    restored = saver.restore(tpujob.step_ceiling())
    tpujob.restored(restored.step)
    start = start_of(restored.origin, restored.step, config.global_batch)
    if start.step == restored.step > 0:
        say(world, f"globalBatch is now {config.global_batch}: rows go on at row {start.row}")
    origin.now["start"] = list(start)
    run = Run(config, world, mesh, programs, saver, clock)
    is_done = _train_from(run, restored, manifest, start)
    distributed.leave(world)
    return ExitCode.DONE if is_done else ExitCode.PREEMPTED


def _mesh(config: TrainerConfig, world: World) -> Mesh:
    devices = jax.devices()
    mesh = topology.mesh_of(config, devices, world.num_slices)
    shown = ", ".join(f"{name} {size}" for name, size in mesh.shape.items())
    kind = devices[0].device_kind
    say(world, f"{len(devices)} devices ({kind}) in {world.num_processes} processes: {shown}")
    return mesh


def _data(config: TrainerConfig, world: World) -> Manifest:
    manifest = prepare(config, lambda text: print(text, flush=True))
    packs = distributed.agree(world, "data", manifest.sha256)
    if len(set(packs)) > 1:
        raise DataError(
            f"processes hold different text in {config.data.directory} ({sorted(set(packs))}): "
            "use one image for all, or a directory that all of them share"
        )
    return manifest


def _train_from(run: Run, restored: Restored, manifest: Manifest, start: Start) -> bool:
    config, clock, world = run.config, run.clock, run.world
    steps = range(restored.step + 1, config.steps + 1)
    batches = Batches(manifest, seed=config.seed, global_batch=config.global_batch, start=start)
    feed = Feed(batches, {length: run.programs.rows_of(length) for length in batches.lengths})
    prefetcher = Prefetcher(feed, steps)
    clock.enter(Phase.COMPILE)
    programs = {length: run.programs.train(length) for length in batches.lengths}
    init = run.programs.init() if restored.state is None else None
    _say_compiled(world, programs)
    clock.enter(Phase.SETUP)
    state = init.call() if init else restored.state
    with noticing_sigterm() as sigterm:
        left_at = _loop(run, programs, state, prefetcher, sigterm.is_set)
        clock.enter(Phase.FINISHING)
        prefetcher.stop()
        run.saver.wait()
        run.saver.close()
    say(
        world,
        f"asked to leave: saved step {left_at}" if left_at else f"finished {config.steps} steps",
    )
    return not left_at


def _say_compiled(world: World, programs: Mapping[int, Compiled]) -> None:
    for length, program in programs.items():
        how = "loaded from the cache" if program.from_cache else "compiled"
        which = f" of length {length}" if len(programs) > 1 else ""
        say(world, f"train step{which} {how} in {program.seconds:.2f} s")


@dataclasses.dataclass(frozen=True, slots=True)
class _Dispatched:
    """A step under way, whose numbers are still on the devices."""

    step: int
    length: int  # of its rows
    metrics: Metrics
    input_wait_s: float
    arrived_at: float  # seconds since the epoch: batch and devices were there
    begun: float  # by the performance counter, as are all spans
    dispatched: float
    alone_from: float  # the devices have nothing else to do


def _loop(
    run: Run,
    programs: Mapping[int, Compiled],
    state: State,
    batches: Prefetcher,
    wants_to_leave: Callable[[], bool],
) -> int:
    """Dispatch step n, then read the numbers of step n - 1: the devices never wait for us.

    Returns:
        The step after which it was asked to leave; 0 when all steps are done.
    """
    reporter = _Reporter(run)
    profiler = Profiler(run.config.profile, lambda text: say(run.world, text))
    schedule: SaveSchedule | None = None
    left_after = 0
    for number, length, rows, wait_s in batches:
        schedule = schedule or SaveSchedule(
            run.config.checkpoint,
            run.world,
            start=number - 1,
            last=run.config.steps,
            last_snapshot=run.saver.last_snapshot,
            wants_to_leave=wants_to_leave,
        )
        profiler.begin(number, reporter.flush)
        reporter.probe_if_due(number)
        are_devices_free = reporter.is_pending_ready
        arrived_at, begun = time.time(), time.perf_counter()
        with profiler.annotated(number):
            state, metrics = programs[length].call(state, rows)
        reporter.dispatched(
            _Dispatched(
                number, length, metrics, wait_s, arrived_at, begun, time.perf_counter(), begun
            ),
            are_devices_free=are_devices_free,
        )
        run.saver.raise_if_failed()
        due = schedule.due(number)
        if due.any:
            reporter.saved(run.saver.save(number, state, due))
        if due.leave:
            left_after = number
            break
    reporter.flush()
    profiler.stop()
    return left_after


def skipped_in_a_row(before: int, loss: float, grad_norm: float) -> int:
    """How many steps up to this one were skipped, as ``train_step`` does if a number is none."""
    return 0 if math.isfinite(loss) and math.isfinite(grad_norm) else before + 1


class _Reporter:
    """Reads the metrics of steps, one step late, and tells about them."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._pending: _Dispatched | None = None
        self._ended = time.perf_counter()
        # Of a step of one second: to look at all devices of a large world takes a while.
        self._mfu_of_1_s = {
            length: flops.mfu(run.config.at_length(length), jax.devices(), 1.0)
            for length in run.config.lengths
        }
        if None not in self._mfu_of_1_s.values():  # elsewhere MFU would mean nothing
            tpujob.model_flops(flops.flops_per_token(run.config))
        self._probe, self._step_s = Probe(), math.inf
        self._is_first = True
        self._skipped = 0  # steps in a row, up to the one reported last
        self._save_blocked_s = 0.0  # since the last report

    def saved(self, blocked_s: float) -> None:
        """A save has held up the loop, while the pending step was computed."""
        self._save_blocked_s += blocked_s
        tpujob.save_blocked(blocked_s)

    @property
    def is_pending_ready(self) -> bool:
        """Whether the devices have nothing to do until the next step is dispatched."""
        if self._pending is None:
            return True
        is_ready: bool = self._pending.metrics["loss"].is_ready()  # type: ignore[attr-defined] # not in the stubs
        return is_ready

    def probe_if_due(self, step: int) -> None:
        """Probe the devices, now and then, when they are done with all steps."""
        if math.isfinite(self._step_s) and step % stride(self._step_s) == 0:
            self.flush()
            self._probe.tell()

    def dispatched(self, following: _Dispatched, *, are_devices_free: bool) -> None:
        """Take over a dispatched step and report the one before it."""
        self.flush()
        if not are_devices_free:  # they are by now: on all hosts at the same time
            following = dataclasses.replace(
                following, arrived_at=time.time(), alone_from=time.perf_counter()
            )
        self._pending = following

    def flush(self) -> None:
        """Wait for the pending step and report it.

        Raises:
            DivergedError: it was skipped, and too many before it.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        loss = float(pending.metrics["loss"])
        now = time.perf_counter()
        step_s, self._ended = now - self._ended, now
        grad_norm = float(pending.metrics["grad_norm"])
        self._skipped = skipped_in_a_row(self._skipped, loss, grad_norm)
        if self._skipped:
            self._tell_skip(pending.step, loss, grad_norm)
        self._report(pending, loss, grad_norm, step_s)

    def _tell_skip(self, step: int, loss: float, grad_norm: float) -> None:
        """Every process sees the same numbers, and gives up after the same step."""
        limit = self._run.config.max_skipped_steps
        numbers = {"loss": str(loss), "gradNorm": str(grad_norm)}
        telemetry.event(self._run.world, "skip", step=step, inARow=self._skipped, **numbers)
        if self._skipped > limit:
            raise DivergedError(
                f"step {step} has a loss of {loss} and a gradient norm of {grad_norm}, and is the "
                f"{self._skipped}. in a row that was skipped for this (maxSkippedSteps {limit}): "
                "lower optimizer.learningRate, or resume from an older checkpoint"
            )

    def _report(self, pending: _Dispatched, loss: float, grad_norm: float, step_s: float) -> None:
        run, config = self._run, self._run.config
        if self._is_first:
            self._is_first = False
            run.clock.enter(Phase.TRAIN)
            say(run.world, f"first step {pending.step} done: {run.clock.summary()}")
            run.saver.prepare()
        mfu_of_1_s = self._mfu_of_1_s[pending.length]
        blocked_s, self._save_blocked_s = self._save_blocked_s, 0.0
        self._step_s = min(self._step_s, step_s)
        report = StepReport(
            step=pending.step,
            loss=loss,
            grad_norm=grad_norm,
            arrived_at=pending.arrived_at,
            input_wait_s=pending.input_wait_s,
            dispatch_s=pending.dispatched - pending.begun,
            ready_s=self._ended - pending.dispatched,
            wait_s=self._ended - pending.alone_from,
            step_s=step_s,
            save_blocked_s=blocked_s,
            tokens=config.global_batch * config.sequence_length,
            mfu=None if mfu_of_1_s is None else mfu_of_1_s / step_s,
        )
        telemetry.report(run.world, report, log_every=config.log_every_steps)
