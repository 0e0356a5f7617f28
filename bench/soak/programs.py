"""What trains during a soak, and what it proves of itself after every fault."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from demo.__main__ import load_manifest, with_own_checkpoints
from demo.clusters import Target
from faults import evidence, judgement
from faults.jobs import HANG_S, NO_LIMITS, endless_job
from faults.scene import Scene

JOB = "soak"
_BUNDLED = Path(__file__).resolve().parents[2] / "examples" / "demo.yaml"
Status = Mapping[str, Any]


class Program(Protocol):
    """A program that trains until its job is deleted."""

    obeys: bool  # orders of ``faults.training``

    def manifest(self, target: Target, namespace: str) -> dict[str, Any]:
        """Its job."""

    def note(self, scene: Scene) -> None:
        """Remember what a fault must not change."""

    def problems(self, scene: Scene, before: Status, after: Status) -> list[str]:
        """What is wrong with its starts and losses after a fault."""


class Toy:
    """``faults.training``: computes nothing, writes down every start and save."""

    obeys = True

    def manifest(self, target: Target, namespace: str) -> dict[str, Any]:
        """Its job."""
        return endless_job(target, namespace, JOB)

    def note(self, scene: Scene) -> None:
        """Its losses are known beforehand."""

    def problems(self, scene: Scene, before: Status, after: Status) -> list[str]:
        """From its diary, and from the losses that it must have."""
        lines = evidence.starts_and_saves(scene)
        told = evidence.losses(scene, after=_saved(before))
        return judgement.of_training(lines, told, before, after)


class Bundled:
    """The bundled trainer as the demo runs it; a step done again must have the same loss."""

    obeys = False

    def __init__(self, *, plans_interval: bool) -> None:
        self._interval = {"policy": "Auto"} if plans_interval else {"policy": "Steps", "steps": 20}
        self._losses: dict[int, float] = {}

    def manifest(self, target: Target, namespace: str) -> dict[str, Any]:
        """Its job."""
        job = with_own_checkpoints(load_manifest(_BUNDLED, target.volume), f"{time.time_ns()}")
        job = copy.deepcopy(job)
        job["metadata"] = {"name": JOB, "namespace": namespace}
        spec = job["spec"]
        spec["trainer"]["config"]["steps"] = 1_000_000
        spec["checkpoint"]["interval"] = self._interval
        spec["recovery"] = {"budgets": NO_LIMITS}
        spec["health"] = {"hang": {"minSeconds": HANG_S}}
        return job

    def note(self, scene: Scene) -> None:
        """Remember the losses so far."""
        self._losses |= evidence.losses(scene)

    def problems(self, scene: Scene, before: Status, after: Status) -> list[str]:  # noqa: ARG002
        """A start from another state than that of its step has other losses from there on."""
        told = evidence.losses(scene)
        other = [step for step, loss in told.items() if self._losses.get(step, loss) != loss]
        return [f"{len(other)} losses changed, first of step {min(other)}"] if other else []


def _saved(status: Status) -> int:
    return int(status.get("checkpoint", {}).get("step", 0))
