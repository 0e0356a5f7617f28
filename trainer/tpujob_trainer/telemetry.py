"""What the trainer tells: the agent through ``tpujob``, people and programs on stdout."""

from __future__ import annotations

import dataclasses
import json
import math
import time

import tpujob
from tpujob_agent.protocol import Phase
from tpujob_checkpoint.distributed import World, say


def event(world: World, name: str, **values: object) -> None:
    """A line of JSON for programs about something out of the ordinary, from the leader only."""
    say(world, json.dumps({"event": name, **values}))


@dataclasses.dataclass(slots=True)
class PhaseClock:
    """Reports phases and remembers how long each one took."""

    world: World
    started: float = dataclasses.field(default_factory=time.perf_counter)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    current: Phase | None = None

    def enter(self, phase: Phase) -> None:
        """Report that ``phase`` begins now."""
        now = time.perf_counter()
        if self.current:
            self.seconds[self.current.value] = round(now - self.started, 3)
        self.current, self.started = phase, now
        tpujob.phase(phase)

    def summary(self) -> str:
        """For people: ``init 0.31 s, restore 0.42 s, …``."""
        return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.seconds.items())


@dataclasses.dataclass(frozen=True, slots=True)
class StepReport:
    """A finished step, with its numbers on the host; times in seconds."""

    step: int
    loss: float
    grad_norm: float
    arrived_at: float  # since the epoch: batch and devices were there
    input_wait_s: float  # the loop waited for the batch
    dispatch_s: float  # handing the step to the devices
    ready_s: float  # from then until its numbers were there
    wait_s: float  # from the arrival until then
    step_s: float  # from the numbers of the step before to these
    save_blocked_s: float  # of it, the loop was held up by a save
    tokens: int
    mfu: float | None

    def line(self) -> str:
        """One line of JSON; losses in full, because those of two runs are compared exactly."""
        values: dict[str, float | None] = {
            "step": self.step,
            "loss": _number(self.loss),
            "gradNorm": _number(round(self.grad_norm, 4)),
            "ms": _ms(self.step_s),
            "arrivedAtMs": _ms(self.arrived_at),
            "inputWaitMs": _ms(self.input_wait_s),
            "dispatchMs": _ms(self.dispatch_s),
            "readyMs": _ms(self.ready_s),
            "saveBlockedMs": _ms(self.save_blocked_s),
            "tokens": self.tokens,
        }
        if self.mfu is not None:
            values["mfu"] = round(self.mfu, 4)
        return json.dumps(values)


def _number(value: float) -> float | None:
    """JSON knows neither NaN nor infinity."""
    return value if math.isfinite(value) else None


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def report(world: World, step: StepReport, *, log_every: int) -> None:
    """Tell the agent about a finished step, and stdout about every ``log_every``-th."""
    tpujob.step(
        step.step,
        loss=_number(step.loss),
        tokens=step.tokens,
        input_wait_s=step.input_wait_s,
        arrived_at=step.arrived_at,
        wait_s=step.wait_s,
    )
    if world.is_leader and step.step % log_every == 0:
        print(step.line(), flush=True)
