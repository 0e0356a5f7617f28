"""``make bench``: run the benchmarks by name, or all of them."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from types import ModuleType

from bench import cluster, recovery, trainer_recovery

_BENCHES: dict[str, Callable[[int], object]] = {
    "cluster": cluster.run,
    "trainer": lambda repeat: trainer_recovery.main(["--repeat", str(repeat)]),
    "recovery": recovery.run,
    "input": lambda repeat: _input_wait().run_input(repeat),
    "telemetry": lambda repeat: _input_wait().run_telemetry(repeat),
}


def _input_wait() -> ModuleType:
    return importlib.import_module("bench.input_wait")  # JAX, only for who measures it


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``python -m bench``."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(_BENCHES)}")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each figure (default 3)")
    args = parser.parse_args(argv)
    unknown = sorted(set(args.names) - set(_BENCHES))
    if unknown:
        parser.error(
            f"no benchmark is called {', '.join(unknown)}; there are {', '.join(_BENCHES)}"
        )
    for name in args.names or _BENCHES:
        print(f"== {name}", flush=True)
        _BENCHES[name](args.repeat)
    return 0


if __name__ == "__main__":
    sys.exit(main())
