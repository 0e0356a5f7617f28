"""``make bench``: run the benchmarks by name, or all of them."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from types import ModuleType

from bench import agents, checkpoint, cluster, demo


def _late(name: str) -> ModuleType:
    return importlib.import_module(f"bench.{name}")  # JAX, only for who measures it


def _stragglers(args: argparse.Namespace) -> None:
    if args.record:
        recorded = _late("recorded")
        print(recorded.record(recorded.FILE).about)
    else:
        _late("stragglers").main(args.runs, args.hours, args.noise)


_BENCHES: dict[str, Callable[[argparse.Namespace], object]] = {
    "cluster": lambda args: cluster.run(args.repeat),
    "agents": lambda args: agents.run(args.repeat),
    "checkpoint": lambda args: checkpoint.main(["--repeat", str(args.repeat)]),
    "demo": lambda args: demo.run(args.repeat),
    "ahead": lambda args: _late("ahead").run(args.repeat),
    "input": lambda args: _late("input_wait").run_input(args.repeat),
    "telemetry": lambda args: _late("input_wait").run_telemetry(args.repeat),
    "stragglers": _stragglers,
    "step": lambda args: _late("step").run(args.repeat, args.nanodo),
}


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``python -m bench``."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(_BENCHES)}")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each figure (default 3)")
    parser.add_argument("--nanodo", default="", help="step: a checkout of google-deepmind/nanodo")
    parser.add_argument("--noise", default="modelled", choices=("modelled", "recorded"))
    parser.add_argument("--runs", type=int, default=60, help="stragglers: runs of each cell")
    parser.add_argument("--hours", type=float, default=1000.0, help="stragglers: without a fault")
    parser.add_argument("--record", action="store_true", help="stragglers: record noise anew")
    args = parser.parse_args(argv)
    unknown = sorted(set(args.names) - set(_BENCHES))
    if unknown:
        parser.error(
            f"no benchmark is called {', '.join(unknown)}; there are {', '.join(_BENCHES)}"
        )
    for name in args.names or _BENCHES:
        print(f"== {name}", flush=True)
        _BENCHES[name](args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
