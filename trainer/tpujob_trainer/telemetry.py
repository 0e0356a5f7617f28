"""What the trainer tells: the agent through ``tpujob``, people and programs on stdout."""

from __future__ import annotations

import dataclasses
import json
import math
import time

import tpujob
from tpujob_agent.protocol import Phase
from tpujob_trainer.distributed import World


def say(world: World, text: str) -> None:
    """A line for people, from the leader only."""
    if world.is_leader:
        print(text, flush=True)


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
    """A finished step, with its numbers on the host."""

    step: int
    loss: float
    grad_norm: float
    ms: float
    input_wait_ms: float
    tokens: int
    mfu: float | None

    def line(self) -> str:
        """One line of JSON."""
        values: dict[str, float | None] = {
            "step": self.step,
            # In full: losses of two runs are compared exactly.
            "loss": _number(self.loss),
            "gradNorm": _number(round(self.grad_norm, 4)),
            "ms": round(self.ms, 2),
            "inputWaitMs": round(self.input_wait_ms, 2),
        }
        if self.mfu is not None:
            values["mfu"] = round(self.mfu, 4)
        return json.dumps(values)


def _number(value: float) -> float | None:
    """JSON knows neither NaN nor infinity."""
    return value if math.isfinite(value) else None


def report(world: World, step: StepReport, *, log_every: int) -> None:
    """Tell the agent about a finished step, and stdout about every ``log_every``-th."""
    tpujob.step(
        step.step,
        loss=_number(step.loss),
        tokens=step.tokens,
        input_wait_s=step.input_wait_ms / 1000,
    )
    if world.is_leader and step.step % log_every == 0:
        print(step.line(), flush=True)
