"""Where checkpoints go and how often: all that a program decides about them."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any

from tpujob_agent.protocol import Env

#: Seconds between saves with ``auto``, until the coordinator tells what is best.
AUTO_INTERVAL_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Of one run's checkpoints.

    Attributes:
        directory: of tier 2; a path, ``gs://…`` or ``s3://…``.
        interval: between checkpoints: ``steps:N``, ``seconds:S``, or ``auto``, which is what the
            coordinator tells from the time of a save and the time between losses.
        keep: how many checkpoints stay.
        snapshot_s: seconds of training that a killed process costs at most, thanks to snapshots
            in memory; 0: none are taken.
    """

    directory: str = ""
    interval: str = "auto"
    keep: int = 3
    snapshot_s: float = 2.0

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Settings:
        """What the job's ``spec.checkpoint`` says, by the agent's environment.

        Raises:
            ValueError: there is no directory.
        """
        given = given_by(env)
        if not given.get("directory"):
            raise ValueError(f"{Env.CHECKPOINT_DIR} is not set: give the job checkpoint.directory")
        return cls(**given)

    def require_valid(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            ValueError: says which value, and what it may be.
        """
        if not is_interval(self.interval):
            raise ValueError(f"interval {self.interval!r} is none of steps:N, seconds:S and auto")
        if not (isinstance(self.keep, int) and self.keep >= 2):
            raise ValueError(f"keep {self.keep!r} is no whole number from 2 on")
        if not self.snapshot_s >= 0:
            raise ValueError(f"snapshot_s {self.snapshot_s!r} is below 0")

    @property
    def interval_steps(self) -> int | None:
        """Steps between saves, or None when the interval is given in time."""
        kind, _, value = self.interval.partition(":")
        return int(value) if kind == "steps" else None

    @property
    def interval_s(self) -> float:
        """Seconds between saves; infinite when the interval is given in steps."""
        kind, _, value = self.interval.partition(":")
        if kind == "steps":
            return math.inf
        return AUTO_INTERVAL_S if kind == "auto" else float(value)


def given_by(env: Mapping[str, str]) -> dict[str, Any]:
    """Values that the environment sets, by the names of ``Settings``."""
    names = {
        "directory": Env.CHECKPOINT_DIR,
        "interval": Env.CHECKPOINT_INTERVAL,
        "keep": Env.CHECKPOINT_KEEP,
    }
    given: dict[str, Any] = {field: env[name] for field, name in names.items() if env.get(name)}
    if str(given.get("keep", "")).isdecimal():
        given["keep"] = int(given["keep"])
    return given


def is_interval(text: str) -> bool:
    """Whether it is one of ``steps:N``, ``seconds:S`` and ``auto``."""
    kind, _, value = text.partition(":")
    if kind == "steps":
        return value.isdecimal() and int(value) >= 1
    try:
        return text == "auto" or (kind == "seconds" and 0 < float(value) < math.inf)
    except ValueError:
        return False
