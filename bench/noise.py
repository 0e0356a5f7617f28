"""How much the times of equal hosts differ from step to step: a model of it."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Of a healthy step.
OWN_SHARE = 0.1
_NOISE, _SPIKES = 0.05, 0.03
_INPUT_SHARE, _COLLECTIONS = 0.2, 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class Own:
    """Milliseconds of the hosts' own work, and of it waiting for input and in pauses."""

    work: Floats
    waited: Floats
    paused: Floats


class Noise(Protocol):
    """Of all hosts at one step; factors of what is usual."""

    def step(self, step_ms: float, /) -> None:
        """The next step begins, so long after the last one."""

    def own(self, usual_ms: float, step_ms: float, /) -> Own:
        """A host's work with its parts."""

    def device(self) -> Floats:
        """Of work on the devices."""

    def probe(self) -> Floats:
        """Of a probe of the devices."""

    def trip(self) -> Floats:
        """Of a message's round trip."""


class Modelled:
    """5 % of everything, and 3 % of works, probes and trips take 1.5 to 4 times as long.

    Each value by itself: hosts have nothing in common, and nothing lasts.
    """

    def __init__(self, hosts: int, rng: np.random.Generator) -> None:
        self._hosts, self._rng = hosts, rng

    def step(self, step_ms: float) -> None:
        """Every step is like any other."""

    def own(self, usual_ms: float, step_ms: float) -> Own:
        """Now and then with a full collection."""
        work = usual_ms * self.probe()
        waited, paused = _INPUT_SHARE * work, np.zeros(self._hosts)
        seldom = self._rng.random(self._hosts) < _COLLECTIONS
        paused[seldom] = self._rng.uniform(0.05, 0.5) * step_ms
        return Own(work + paused, waited, paused)

    def device(self) -> Floats:
        """Without spikes: devices do nothing else."""
        return self._rng.normal(1.0, _NOISE, self._hosts).clip(0.5)

    def probe(self) -> Floats:
        """With spikes."""
        spikes = self._rng.uniform(1.5, 4.0, self._hosts)
        return self.device() * np.where(self._rng.random(self._hosts) < _SPIKES, spikes, 1.0)

    def trip(self) -> Floats:
        """With spikes."""
        return self.probe()
