"""``make soak``: one long job under many random faults; nothing may be answered or resumed wrongly.

With ``--every`` the faults come by the clock, and goodput is compared with the model's optimum.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Iterator

from bench.figures import machine
from bench.installed import installed
from bench.soak import draw, table
from bench.soak.draw import Hit
from bench.soak.programs import Bundled, Program, Status, Toy
from bench.soak.runner import Outcome, Runner
from tpujob_trainer.config import CheckpointConfig

_NAME = "soak"
_TRAINERS = ("toy", "bundled")


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``python -m bench.soak``."""
    options = _options(argv)
    program = _program(options)
    names = options.only or draw.choices(obeys=program.obeys)
    count = round(options.minutes * 60 / options.every) if options.every else options.faults
    hits = draw.draw(options.seed, count, names, 0.0 if options.every else options.pause)
    with installed(_NAME, _say) as (cluster, target):
        _say(f"seed {options.seed}, {len(hits)} faults of {', '.join(names)}")
        return _soak(Runner(cluster, target, program), hits, options)


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench.soak", description=__doc__)
    parser.add_argument("--faults", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument(
        "--pause", type=float, default=2.0, help="seconds of training before each, at most"
    )
    parser.add_argument("--only", nargs="+", choices=draw.choices(obeys=True), metavar="FAULT")
    parser.add_argument(
        "--trainer", choices=_TRAINERS, default="toy", help="what trains (default toy)"
    )
    parser.add_argument("--every", type=float, default=0, help="seconds from fault to fault")
    parser.add_argument("--minutes", type=float, default=30, help="with --every (default 30)")
    options = parser.parse_args(argv)
    orders = {*(options.only or ())} - {*draw.choices(obeys=options.trainer == "toy")}
    if orders:
        parser.error(f"the bundled trainer takes no orders: not {', '.join(sorted(orders))}")
    return options


def _program(options: argparse.Namespace) -> Program:
    return Bundled(plans_interval=bool(options.every)) if options.trainer == "bundled" else Toy()


def _soak(runner: Runner, hits: list[Hit], options: argparse.Namespace) -> int:
    outcomes: list[Outcome] = []
    first = runner.start()
    _say(f"the job trains; {machine()}")
    try:
        for outcome in _outcomes(runner, hits, options.every):
            outcomes.append(outcome)
            _say(f"{len(outcomes):>4}/{len(hits)} {table.line(outcome)}")
            for wrong in (*outcome.wrong, *outcome.wrong_resumes):
                _say(f"     WRONG: {wrong}")
    except (LookupError, TimeoutError) as error:
        _say(f"     WRONG: {hits[len(outcomes)]}: {error}")
    _tell(outcomes, first, runner.status, options)
    is_right = len(outcomes) == len(hits) and not any(
        one.wrong or one.wrong_resumes for one in outcomes
    )
    if not is_right:
        print(f"to repeat: python -m bench.soak {_arguments(options)}")
    return 0 if is_right else 1


def _outcomes(runner: Runner, hits: list[Hit], every_s: float) -> Iterator[Outcome]:
    begun = time.monotonic()
    for number, hit in enumerate(hits, 1):
        if every_s:
            # Half an interval before the first and after the last: so many in so much time.
            time.sleep(max(0.0, begun + (number - 0.5) * every_s - time.monotonic()))
        yield runner.hit(hit, is_timed=bool(every_s))
    if every_s:
        time.sleep(max(0.0, begun + len(hits) * every_s - time.monotonic()))


def _tell(
    outcomes: list[Outcome], first: Status, last: Status, options: argparse.Namespace
) -> None:
    print(f"\n{machine()}\n\n{table.markdown(outcomes)}\n")
    tier1_s = CheckpointConfig().snapshot_s if options.trainer == "bundled" else 0.0
    for verdict in table.verdicts(outcomes, tier1_s):
        print(verdict)
    reached = table.goodput(first, last)
    print(f"goodput from the first save on: {reached:.4f}")
    best = table.optimum(last, outcomes, options.every) if options.every else None
    if best:
        print(f"the model's optimum: {best:.4f}; {reached / best:.3f} of it")


def _arguments(options: argparse.Namespace) -> str:
    given = {key: value for key, value in vars(options).items() if value}
    words = [
        f"--{key} {' '.join(value) if isinstance(value, list) else value}"
        for key, value in given.items()
    ]
    return " ".join(words)


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
