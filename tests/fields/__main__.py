"""``make fields``: every field of jobs that run, changed and changed back under one operator.

Exits with 1 if a change is not answered, or if the former spec does not make the former children.
``--only`` plays single cases again, by their names.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import queue
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.api.mutations import Case
from tests.conftest import make_namespace, start_control_plane
from tests.fields.drawn import drawn
from tests.fields.stage import Stage, stage
from tests.fields.trial import Actor, Result

_NAMESPACE = "fields"
_SAID_EVERY = 50


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``python -m tests.fields``."""
    options = _options(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    cases = [case for case in drawn(options.sample, options.seed) if _is_meant(case, options)]
    results: list[Result] = []
    with start_control_plane("fields") as cluster:
        make_namespace(cluster, _NAMESPACE)
        with stage(cluster, _NAMESPACE, options.out) as made:
            with (options.out / "results.jsonl").open("w") as sink:
                for result in _played(made, cases, options):
                    results.append(result)
                    print(json.dumps(dataclasses.asdict(result)), file=sink, flush=True)
            tracebacks = made.operator.life.count("Traceback")
    return _report(results, tracebacks, options.limit)


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("make fields", description=__doc__)
    parser.add_argument("--sample", type=int, default=0, help="so many cases; 0: all")
    parser.add_argument("--seed", type=int, default=14, help="which ones, and in which order")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="cases with these names")
    parser.add_argument("--parallel", type=int, default=12, help="jobs at the same time")
    parser.add_argument("--limit", type=float, default=30.0, help="seconds until the answer")
    parser.add_argument("--out", type=Path, default=Path("build/fields"), help="for results, logs")
    return parser.parse_args(argv)


def _is_meant(case: Case, options: argparse.Namespace) -> bool:
    return not options.only or case.name in options.only


def _played(made: Stage, cases: Sequence[Case], options: argparse.Namespace) -> Iterator[Result]:
    begun, actors = time.monotonic(), queue.SimpleQueue[Actor]()
    for number in range(options.parallel):
        actors.put(Actor(made.world, f"c-{number}", options.limit))

    def play(case: Case) -> Result:
        actor = actors.get()
        try:
            return actor.play(case)
        finally:
            actors.put(actor)

    with concurrent.futures.ThreadPoolExecutor(options.parallel) as pool:
        futures = [pool.submit(play, case) for case in cases]
        for number, future in enumerate(concurrent.futures.as_completed(futures), start=1):
            result = future.result()
            if result.problem:
                _say(f"{number}/{len(cases)} WRONG {result.case}: {result.problem[:400]}")
            elif number % _SAID_EVERY == 0:
                _say(f"{number}/{len(cases)} after {time.monotonic() - begun:.0f} s")
            yield result


def _report(results: Sequence[Result], tracebacks: int, limit_s: float) -> int:
    for outcome, number in sorted(collections.Counter(r.outcome for r in results).items()):
        print(f"{number:6} {outcome}")
    times = sorted(result.answer_s for result in results if result.answer_s)
    if times:
        p50, p99 = (times[int(len(times) * share)] for share in (0.5, 0.99))
        print(f"answers: p50 {p50:.1f} s, p99 {p99:.1f} s, most {times[-1]:.1f} of {limit_s:.0f} s")
    wrong = [result for result in results if result.problem]
    for result in wrong:
        print(f"{result.case}\n    {result.problem}")
    print(
        f"{len(results)} cases, {len(wrong)} wrong, {tracebacks} tracebacks in the operator's log"
    )
    return 1 if wrong or tracebacks else 0


def _say(line: str) -> None:
    print(f"[{time.strftime('%T')}] {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
