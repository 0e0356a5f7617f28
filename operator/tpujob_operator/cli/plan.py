"""``kubectl tpujob plan FILE``: how long a job will take and what it will cost, beforehand."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pydantic
from rich.console import Console

from tpujob_agent.protocol import Env
from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.api.recovery import PodRecovery
from tpujob_operator.cli import plantables
from tpujob_operator.cli.files import FileError, read_jobs
from tpujob_operator.core.cost import provisioning_of
from tpujob_operator.sim.estimate import (
    Assumed,
    Capacity,
    Estimate,
    Work,
    choices,
    estimate,
    simulated,
)
from tpujob_operator.sim.outcome import Outcome
from tpujob_operator.sim.scenario import SOURCES, Features
from tpujob_tpu.prices import AS_OF, Prices
from tpujob_tpu.provisioning import Provisioning
from tpujob_trainer import config as configs
from tpujob_trainer.fields import ConfigError
from tpujob_trainer.flops import flops_per_token

DOES_NOT_FIT = 3
#: Where neither the job nor the caller says what the chips will reach.
_MFU = 0.5
_MOST_SPARES = 2


def add(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser(
        "plan", help="days, goodput and cost of a job before it runs, and of the alternatives"
    )
    parser.add_argument("file", metavar="FILE", help="a manifest with one job; - is standard input")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    parser.add_argument(
        "--check", action="store_true", help="ask the TPU compiler whether it fits (minutes)"
    )
    parser.add_argument("--mfu", type=_share, help="default: spec.objectives.mfu, else 0.5")
    parser.add_argument("--steps", type=_positive_int, help="default: the trainer's")
    parser.add_argument("--step-seconds", type=_positive, help="measured, instead of the MFU")
    parser.add_argument("--save-seconds", type=_positive, help="until a save is durable")
    parser.add_argument(
        "--preemptions-per-slice-day", type=_positive, help="of spot slices; default: 1"
    )
    parser.add_argument("--faults-per-chip-day", type=_positive, help="default: 0.0005")
    parser.add_argument("--prices", metavar="FILE", help="JSON, as the chart's prices")
    parser.add_argument("--seed", type=int, default=1, help="of the simulated faults; default: 1")
    parser.set_defaults(run=run)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1, such as 0.45")
    return value


@dataclasses.dataclass(frozen=True, slots=True)
class Planned:
    """The answer."""

    job: TPUTrainingJob
    assumed: Assumed
    check: dict[str, Any] | None  # what the compiler says; None: it was not asked
    own: Estimate
    simulated_days: float
    simulation: Outcome
    spares: tuple[Estimate, ...]
    alternatives: tuple[Estimate, ...]

    def to_json(self) -> dict[str, Any]:
        """All of it as a JSON object."""
        return {
            "name": self.job.metadata.name,
            "check": self.check,
            "estimate": self.own.to_json(),
            "simulation": {"days": self.simulated_days, **self.simulation.to_json()},
            "spares": [item.to_json() for item in self.spares],
            "alternatives": [item.to_json() for item in self.alternatives],
            "assumptions": self.assumptions(),
        }

    def assumptions(self) -> list[str]:
        """What was put in, for people."""
        assumed, times = self.assumed, self.assumed.times
        of_step = "as given" if assumed.step_s else f"from an MFU of {assumed.mfu:.0%}"
        whose = "your prices" if assumed.prices else f"list prices of {AS_OF} and shares of them"
        return [
            f"Step times {of_step}; the same MFU on every generation.",
            f"Faults per chip and day: {assumed.faults.per_chip_day:g}.",
            f"Of them take a slice: {assumed.faults.host_share:.0%}.",
            f"Preemptions of a spot slice a day: {assumed.preemptions_per_slice_day:g}, a guess.",
            f"A flex-start node runs {assumed.run_s / 86_400:g} days; queueing is not counted.",
            *(f"{name} {getattr(times, name):g} s: {SOURCES[name]}." for name in self._times()),
            f"Prices: {whose}. Spares are paid for.",
        ]

    def _times(self) -> tuple[str, ...]:
        """Those that the estimate depends on."""
        until_pods = ("replace",) if self.assumed.in_place else ("silence", "recreate")
        return ("blocked", "lag", "init", "restore", "first_step", *until_pods)


def run(given: argparse.Namespace) -> int:
    """Print the plan; the exit status is 3 if the job does not fit."""
    jobs = read_jobs(given.file)
    if len(jobs) > 1:
        raise FileError(f"{given.file}: has {len(jobs)} jobs: give one at a time")
    made = plan(jobs[0], given)
    if given.output == "json":
        print(json.dumps(made.to_json(), indent=1))
    else:
        plantables.show(
            Console(),
            own=made.own,
            check=made.check,
            simulation=made.simulation,
            simulated_days=made.simulated_days,
            spares=made.spares,
            alternatives=made.alternatives,
            assumptions=made.assumptions(),
        )
    return DOES_NOT_FIT if made.check and made.check.get("fits") is False else 0


def plan(job: TPUTrainingJob, given: argparse.Namespace) -> Planned:
    """What is to be expected of a job."""
    spec = job.spec
    work, assumed = _work(job, given.steps), _assumed(job, given)
    capacity = Capacity(
        spec.accelerator.value, spec.topology, spec.slices, spec.spares, provisioning_of(job)
    )
    checked = _check(job) if given.check else None
    bound = ((checked or {}).get("upperBound") or {}).get("mfu", 1.0)
    assumed = dataclasses.replace(assumed, mfu=min(assumed.mfu, bound))
    own = estimate(capacity, work, assumed)
    features = Features(
        in_place=assumed.in_place, elastic=spec.elastic is not None, spares=spec.spares
    )
    days, simulation = simulated(own, assumed, features, given.seed)
    # A measured step says nothing of other chips, but for the FLOPs that it stands for.
    elsewhere = dataclasses.replace(assumed, step_s=None, mfu=own.mfu or assumed.mfu)
    others = [estimate(other, work, elsewhere) for other in choices(capacity)]
    spares = [
        estimate(dataclasses.replace(capacity, spares=number), work, assumed)
        for number in range(_MOST_SPARES + 1)
    ]
    return Planned(job, assumed, checked, own, days, simulation, tuple(spares), tuple(others))


def _work(job: TPUTrainingJob, steps: int | None) -> Work:
    """What the trainer's configuration asks for; of another program nothing is known."""
    if not job.spec.trainer:
        return Work(steps)
    directory = job.spec.checkpoint.directory if job.spec.checkpoint else ""
    try:
        config = configs.load(
            job.spec.trainer.config, overrides={"checkpoint": {"directory": directory}}
        )
    except ConfigError as error:
        lines = "\n".join(f"spec.trainer.config: {problem}" for problem in error.problems)
        raise FileError(lines) from error
    tokens = config.global_batch * config.sequence_length
    return Work(steps or config.steps, tokens, flops_per_token(config) * tokens)


def _assumed(job: TPUTrainingJob, given: argparse.Namespace) -> Assumed:
    objectives, bought = job.spec.objectives, job.spec.provisioning
    usual = Assumed()
    times, faults = usual.times, usual.faults
    if given.save_seconds:
        times = dataclasses.replace(times, lag=given.save_seconds)
    if given.faults_per_chip_day:
        faults = dataclasses.replace(faults, per_chip_day=given.faults_per_chip_day)
    return Assumed(
        mfu=given.mfu or (objectives.mfu if objectives else None) or _MFU,
        step_s=given.step_seconds,
        times=times,
        faults=faults,
        preemptions_per_slice_day=given.preemptions_per_slice_day
        or usual.preemptions_per_slice_day,
        run_s=(bought.max_run_duration_seconds if bought else None) or usual.run_s,
        in_place=job.spec.recovery.pods is PodRecovery.IN_PLACE,
        prices=_prices(given.prices) if given.prices else {},
    )


def _prices(path: str) -> Prices:
    table = pydantic.TypeAdapter(dict[str, dict[Provisioning, pydantic.PositiveFloat]])
    try:
        return table.validate_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error
    except pydantic.ValidationError as error:
        wanted = 'such as {"v5e": {"OnDemand": 1.1}}'
        raise FileError(f"{path}: prices are JSON {wanted}: {error}") from error


def _check(job: TPUTrainingJob) -> dict[str, Any]:
    """What the trainer's own check says; it needs JAX and the TPU compiler."""
    spec = job.spec
    if not spec.trainer:
        return {"error": "only configurations of the bundled trainer can be checked"}
    where = ["--accelerator", spec.accelerator.value, "--topology", spec.topology]
    command = [sys.executable, "-m", "tpujob_trainer", "check", *where]
    command += ["--slices", str(spec.slices), "--config", f"env:{Env.TRAINER_CONFIG}", "-o", "json"]
    environment = os.environ | {Env.TRAINER_CONFIG: json.dumps(spec.trainer.config)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False, text=True)
    if done.returncode in (0, DOES_NOT_FIT):
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer
    return {"error": f"tpujob-trainer check ended with exit code {done.returncode}: see above"}
