"""``make replicas``: two replicas of the operator, of which the leader is killed, frozen, cut off.

Exits with 1 if anything differs from lives without a blow, or a replica without the Lease wrote.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from tests.conftest import start_control_plane
from tests.faultproxy.journal import Write
from tests.replicas import cutoff
from tests.replicas.blows import KINDS, Blow, draw
from tests.replicas.duo import SHORT_LEASE
from tests.replicas.lives import LIVES, allowed
from tests.replicas.play import House
from tests.replicas.watchman import Watchman
from tests.sweep.compare import Reference
from tests.sweep.play import theatre

_CUT_OFF = "cut-off"


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What came of one blow."""

    blow: str
    kind: str
    is_hit: bool
    lease_s: float | None
    acting_s: float | None
    changes: int
    seconds: float
    load: float
    differences: list[str]


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``python -m tests.replicas``."""
    options = _options(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / "results.jsonl"
    if not options.resume:
        results.unlink(missing_ok=True)
    is_good = True
    with _house(options) as house, results.open("a") as sink:
        kinds = [kind for kind in options.what if kind in KINDS]
        if kinds:
            references, writes = _references(house, options)
            for kind in kinds:
                known = [result for result in _read(results) if result.kind == kind]
                _campaign(house, (references, writes), (kind, known), options, sink)
        if _CUT_OFF in options.what:
            is_good = cutoff.report(house.theatre, options.cut_s, _say)
    return 0 if _report(_read(results)) and is_good else 1


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("make replicas", description=__doc__)
    what = (*KINDS, _CUT_OFF)
    parser.add_argument("what", nargs="*", default=list(what), metavar="|".join(what))
    parser.add_argument("--runs", type=int, default=50, help="hits of each kind")
    parser.add_argument("--freeze-s", type=float, default=45.0, help="how long it is frozen")
    parser.add_argument("--cut-s", type=float, default=300.0, help="how long it is cut off")
    parser.add_argument("--life", nargs="+", choices=LIVES, default=list(LIVES))
    parser.add_argument("--seed", type=int, default=0, help="which writes are hit")
    parser.add_argument("--parallel", type=int, default=6, help="lives at the same time")
    parser.add_argument("--references", type=int, default=2, help="lives without a blow")
    parser.add_argument("--short", action="store_true", help="a Lease of 3 s instead of 10 s")
    parser.add_argument("--resume", action="store_true", help="go on after the last results")
    parser.add_argument("--out", type=Path, default=Path("build/replicas"), help="results, logs")
    options = parser.parse_args(argv)
    if wrong := set(options.what) - {*what}:
        parser.error(f"unknown: {', '.join(sorted(wrong))}; choose from {', '.join(what)}")
    return options


@contextlib.contextmanager
def _house(options: argparse.Namespace) -> Iterator[House]:
    with (
        start_control_plane(f"replicas-{os.getpid()}") as cluster,
        theatre(cluster, options.out / "logs") as made,
    ):
        yield House(made, Watchman(made.census), SHORT_LEASE if options.short else {})


References = dict[str, Reference]
Writes = dict[str, Sequence[Write]]


def _references(house: House, options: argparse.Namespace) -> tuple[References, Writes]:
    """Lives without a blow, and the writes that all of them made after their first step."""
    lives = [life for life in options.life for _ in range(options.references)]
    with concurrent.futures.ThreadPoolExecutor(options.parallel) as pool:
        played = list(pool.map(lambda life: house.play(life, None, None), lives))
    references: References = {}
    writes: Writes = {}
    for life in options.life:
        mine = [found for name, found in zip(lives, played, strict=True) if name == life]
        for fault in {fault for found in mine for fault in found.outcome.faults}:
            _say(f"  WITHOUT ANY BLOW: {life}: {fault}")
        references[life] = Reference(
            [end for found in mine for end in allowed(life, found.outcome)]
        )
        common = set.intersection(*({_key(write) for write in one.writes} for one in mine))
        writes[life] = [write for write in mine[0].writes if _key(write) in common]
        _say(f"{life}: {len(writes[life])} writes of recoveries, {mine[0].outcome.seconds:.0f} s")
    return references, writes


def _key(write: Write) -> tuple[str, str, str, int]:
    return write.verb, write.target, write.name, write.nth


def _campaign(
    house: House,
    known: tuple[References, Writes],
    before: tuple[str, Sequence[Result]],
    options: argparse.Namespace,
    sink: TextIO,
) -> None:
    """Strike until so many blows have hit; one whose write did not come counts for nothing."""
    references, writes = known
    kind, results = before
    numbers = itertools.count(len(results))
    missing = options.runs - sum(1 for result in results if result.is_hit)
    while missing > 0:
        drawn = [next(numbers) for _ in range(missing)]
        blows = [draw(kind, writes, n, options.seed, options.freeze_s) for n in drawn]
        with concurrent.futures.ThreadPoolExecutor(options.parallel) as pool:
            futures = {pool.submit(_strike, house, references[b.life], b): b for b in blows}
            for future in concurrent.futures.as_completed(futures):
                if error := future.exception():  # of the test itself; another blow takes its place
                    _say(f"not played: {futures[future].id}")
                    traceback.print_exception(error)
                    continue
                result = future.result()
                missing -= result.is_hit
                print(json.dumps(dataclasses.asdict(result)), file=sink, flush=True)
                _tell(result, options.runs - missing)


def _strike(house: House, reference: Reference, blow: Blow) -> Result:
    played = house.play(blow.life, blow, reference)
    outcome = played.outcome
    found = reference.differences(outcome)
    load = os.getloadavg()[0]
    return Result(
        blow.id, blow.kind, outcome.is_hit, played.lease_s, played.acting_s, played.changes,
        round(outcome.seconds, 1), load, found,
    )  # fmt: skip


def _tell(result: Result, number: int) -> None:
    verdict = "DIFFERS" if result.differences else "same" if result.is_hit else "not reached"
    took = f"Lease {_words(result.lease_s)}, acting {_words(result.acting_s)}"
    _say(f"{number} {verdict:11} {took}  load {result.load:.0f}  {result.blow}")
    for line in result.differences[:8]:
        _say(f"      {line}")


def _words(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f} s"


def _read(results: Path) -> list[Result]:
    return [Result(**json.loads(line)) for line in results.read_text().splitlines()]


def _report(results: Sequence[Result]) -> bool:
    """Print what came of all; returns whether nothing differs."""
    for kind in KINDS:
        hit = [result for result in results if result.kind == kind and result.is_hit]
        if not hit:
            continue
        differing = [result for result in hit if result.differences]
        print(f"\n{kind}: {len(hit)} blows, {len(differing)} differ")
        for name in ("lease_s", "acting_s"):
            print(f"  {name}: {_spread([getattr(result, name) for result in hit])}")
        print(f"  Lease lost again on a starved machine: {sum(r.changes > 1 for r in hit)}")
        for result in differing:
            print("\n      ".join([f"  {result.blow}", *result.differences]))
    return not any(result.differences for result in results)


def _spread(times: Sequence[Any]) -> str:
    known = sorted(time_s for time_s in times if time_s is not None)
    if not known:
        return "none"
    late = sum(1 for time_s in known if time_s > 15)
    return (
        f"p50 {statistics.median(known):.1f}, most {known[-1]:.1f}, n {len(known)}, "
        f"{late} above 15 s"
    )


def _say(line: str) -> None:
    print(f"[{time.strftime('%T')}] {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
