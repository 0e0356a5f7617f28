"""``make sweep``: every plan of every life, compared with lives without faults.

Exits with 1 if anything differs or could not be played. Each difference names its plan; ``--only``
plays it again.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import random
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.conftest import start_control_plane
from tests.sweep.compare import Reference
from tests.sweep.lives import LIVES
from tests.sweep.plans import FAMILIES, Plan, plans_for, sample
from tests.sweep.play import Theatre, theatre


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What came of one plan."""

    plan: str
    differences: list[str]
    is_hit: bool
    seconds: float


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``python -m tests.sweep``."""
    options = _options(argv)
    results = options.out / "results.jsonl"
    if not options.resume:
        shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True, exist_ok=True)
    with _stage(options) as stage, results.open("a") as sink:
        unplayed = [plan for life in options.life for plan in _sweep(stage, life, options, sink)]
    found = [Result(**json.loads(line)) for line in results.read_text().splitlines()]
    return _report(found, unplayed)


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("make sweep", description=__doc__)
    parser.add_argument("--life", nargs="+", choices=LIVES, default=list(LIVES))
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--only", nargs="+", metavar="PLAN", help="plans with these names")
    parser.add_argument("--sample", type=int, default=0, help="so many of each life and family")
    parser.add_argument("--most", type=int, help="at most so many of each life, known ones too")
    parser.add_argument("--seed", type=int, default=0, help="which ones, and in which order")
    parser.add_argument("--parallel", type=int, default=4, help="lives at the same time")
    parser.add_argument("--references", type=int, default=3, help="lives without faults")
    parser.add_argument("--lease", action="store_true", help="all operators hold a Lease")
    parser.add_argument("--resume", action="store_true", help="leave out plans that have a result")
    parser.add_argument("--list", action="store_true", help="only name the plans")
    parser.add_argument("--out", type=Path, default=Path("build/sweep"), help="for results, logs")
    options = parser.parse_args(argv)
    if options.only:
        options.life = sorted({plan.partition(":")[0] for plan in options.only} & {*LIVES})
    return options


@contextlib.contextmanager
def _stage(options: argparse.Namespace) -> Iterator[Theatre]:
    with (
        start_control_plane("sweep") as cluster,
        theatre(cluster, options.out / "logs", has_lease=options.lease) as made,
    ):
        yield made


def _sweep(stage: Theatre, life: str, options: argparse.Namespace, sink: object) -> list[str]:
    """Play the plans of a life; the names of those that could not be played."""
    played = [stage.play(life, None, None) for _ in range(options.references)]
    reference = Reference([outcome for outcome, _ in played])
    _say(f"{life}: {len(played)} lives without faults, {played[-1][0].seconds:.1f} s")
    for fault in {fault for outcome, _ in played for fault in outcome.faults}:
        _say(f"  WITHOUT ANY FAULT: {fault}")
    plans = _chosen(plans_for(life, played[-1][1]), options)
    if options.list:
        print("\n".join(plan.id for plan in plans))
        return []
    unplayed: list[str] = []
    _say(f"{life}: {len(plans)} plans")
    with concurrent.futures.ThreadPoolExecutor(options.parallel) as pool:
        futures = {pool.submit(_play, stage, reference, plan): plan for plan in plans}
        for number, future in enumerate(concurrent.futures.as_completed(futures), start=1):
            error = future.exception()
            if error is not None:  # of the test itself; --resume plays it again
                unplayed.append(futures[future].id)
                _say(f"{number}/{len(plans)} not played: {unplayed[-1]}: {error!r}")
                continue
            result = future.result()
            print(json.dumps(dataclasses.asdict(result)), file=sink, flush=True)  # type: ignore[call-overload]
            _tell(result, f"{number}/{len(plans)}")
    return unplayed


def _chosen(plans: Sequence[Plan], options: argparse.Namespace) -> list[Plan]:
    chosen = [plan for plan in plans if plan.family in options.family]
    if options.only:
        return [plan for plan in plans if plan.id in options.only]
    if options.sample:
        chosen = sample(chosen, options.sample, options.seed)
    results = options.out / "results.jsonl"
    known = {json.loads(line)["plan"] for line in results.read_text().splitlines()}
    missing = [plan for plan in chosen if plan.id not in known]
    random.Random(options.seed).shuffle(missing)
    if options.most is not None:
        has_result = sum(1 for plan in known if plan.startswith(f"{chosen[0].life}:"))
        return missing[: max(0, options.most - has_result)]
    return missing


def _play(stage: Theatre, reference: Reference, plan: Plan) -> Result:
    outcome, _ = stage.play(plan.life, plan, reference.is_settled)
    found = reference.differences(outcome)
    return Result(plan.id, found, outcome.is_hit, round(outcome.seconds, 1))


def _tell(result: Result, number: str) -> None:
    verdict = "DIFFERS" if result.differences else "same" if result.is_hit else "not reached"
    _say(f"{number} {verdict:11} {result.seconds:5.1f} s  {result.plan}")
    for line in result.differences[:8]:
        _say(f"      {line}")


def _report(results: Sequence[Result], unplayed: Sequence[str]) -> int:
    differing = [result for result in results if result.differences]
    missed = sum(1 for result in results if not result.is_hit)
    print(f"\n{len(results)} plans, {len(differing)} differ, {missed} did not reach their fault")
    for result in differing:
        print(f"  make sweep SWEEP_ARGS='--only {result.plan}'")
        for line in result.differences:
            print(f"      {line}")
    print("\n".join(table([result.plan for result in results], [r.plan for r in differing])))
    if unplayed:
        print(f"{len(unplayed)} could not be played: make sweep SWEEP_ARGS='--resume' plays them")
    return 1 if differing or unplayed else 0


def table(played: Sequence[str], differing: Sequence[str]) -> list[str]:
    """Plans per family and life, and how many of them differ, as Markdown."""
    lives = list(dict.fromkeys(plan.split(":")[0] for plan in played))
    plans = collections.Counter(_group(plan) for plan in played)
    found = collections.Counter(_group(plan) for plan in differing)

    def cell(life: str, family: str) -> str:
        count = sum(number for group, number in plans.items() if _fits(group, life, family))
        wrong = sum(number for group, number in found.items() if _fits(group, life, family))
        return f"{count}, {wrong} differ" if wrong else str(count)

    rows = [["Family", *lives, "All"], ["---"] * (len(lives) + 2)]
    rows += [
        [family or "All", *(cell(life, family) for life in (*lives, ""))]
        for family in [*dict.fromkeys(group[1] for group in plans), ""]
    ]
    return [f"| {' | '.join(row)} |" for row in rows]


def _group(plan: str) -> tuple[str, str]:
    life, family, _ = plan.split(":", 2)
    return life, family


def _fits(group: tuple[str, str], life: str, family: str) -> bool:
    return life in ("", group[0]) and family in ("", group[1])


def _say(line: str) -> None:
    print(f"[{time.strftime('%T')}] {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
