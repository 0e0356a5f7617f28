"""``python -m tpujob_operator.sim``: goodput of a job of any size, by simulation."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from tpujob_operator.sim import outcome
from tpujob_operator.sim.scenario import LADDER, PUBLISHED, SCENARIOS, Scenario

_N = TypeVar("_N", int, float)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tpujob_operator.sim",
        description="Simulate a training job with the real coordinator, ledger and interval "
        "policy in simulated time, and print what each feature is worth. A simulation: faults "
        "and times are assumptions, which are printed below the table.",
    )
    parser.add_argument(
        "scenario", nargs="?", default="llama3", choices=sorted(SCENARIOS), help="default: llama3"
    )
    parser.add_argument("--chips", type=_positive, help="number of chips")
    parser.add_argument("--chips-per-slice", type=_positive, help="chips that are lost together")
    parser.add_argument("--days", type=_positive_float, help="simulated days")
    parser.add_argument(
        "--faults-per-chip-day", type=_positive_float, help="rate, instead of a given number"
    )
    parser.add_argument("--weibull-shape", type=_positive_float, help="below 1: faults in bunches")
    parser.add_argument("--width", type=_positive, help="slices that are lost together")
    parser.add_argument("--replace-s", type=_positive_float, help="seconds to replace a slice")
    parser.add_argument("--seed", type=int, default=1, help="equal seeds, equal faults; default: 1")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="also draw (matplotlib)")
    return parser


def _positive(text: str) -> int:
    return _checked(int(text))


def _positive_float(text: str) -> float:
    return _checked(float(text))


def _checked(value: _N) -> _N:
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value


def scenario_of(given: argparse.Namespace) -> Scenario:
    """The chosen scenario with what was asked for in its place."""
    scenario = SCENARIOS[given.scenario]
    sizes = {"chips": given.chips, "chips_per_slice": given.chips_per_slice, "days": given.days}
    faults = {"weibull_shape": given.weibull_shape, "width": given.width}
    if given.faults_per_chip_day:
        faults |= {"per_chip_day": given.faults_per_chip_day}
    changed = dataclasses.replace(scenario.faults, **_given(faults))
    if given.faults_per_chip_day or given.weibull_shape:
        changed = dataclasses.replace(changed, unplanned=None)
    times = dataclasses.replace(scenario.times, **_given({"replace": given.replace_s}))
    return dataclasses.replace(scenario, faults=changed, times=times, **_given(sizes))


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    given = _parser().parse_args(arguments)
    scenario = scenario_of(given)
    outcomes = outcome.ladder(scenario, LADDER, given.seed)
    published = PUBLISHED.get(scenario.name, "")
    if given.output == "json":
        body = {
            "scenario": dataclasses.asdict(scenario),
            "seed": given.seed,
            "simulated": [item.to_json() for item in outcomes],
            "published": published,
        }
        print(json.dumps(body, indent=2))
    else:
        print(outcome.title(scenario, given.seed), outcome.table(outcomes), sep="\n\n")
        if published:
            print(f"\n{published}")
        print("\nSimulated, not measured. Assumptions:", outcome.assumptions(scenario), sep="\n")
    if given.picture:
        from tpujob_operator.sim.picture import draw  # noqa: PLC0415 - matplotlib is optional

        draw(outcomes, outcome.title(scenario, given.seed), given.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
