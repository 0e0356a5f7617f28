"""``make bench-recovery``: the same faults under this operator and under what users have today.

Same cluster, same image, same program. Results are added to a file, so that a long run may
be made in pieces; the table shows all that is in it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path

from bench.figures import machine
from bench.installed import installed
from bench.recovery import table
from bench.recovery.measure import Recovery
from bench.recovery.runner import FAULTS, OURS_ALONE, SAME, Runner
from bench.recovery.systems import SYSTEMS

_NAME = "recovery"
_OUT = Path("build/bench/recovery.json")
#: Kubernetes calls a silent node not Ready after so long, 50 s by default.
_GRACE_S = 20
#: The operator's ``nodeLossSeconds``: a node that is not Ready is given up so much later.
_NODE_LOSS_S = 10


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``python -m bench.recovery``."""
    parser = argparse.ArgumentParser("bench.recovery", description=__doc__)
    parser.add_argument("--ours", type=int, default=10, help="repetitions (default 10)")
    parser.add_argument("--peers", type=int, default=3, help="repetitions (default 3)")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=[*SYSTEMS])
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=[*FAULTS])
    parser.add_argument("--limit", type=float, default=150, help="seconds until it says never")
    parser.add_argument("--out", type=Path, default=_OUT, help=f"results (default {_OUT})")
    parser.add_argument("--fresh", action="store_true", help="forget what is in there")
    options = parser.parse_args(argv)
    if options.fresh:
        options.out.unlink(missing_ok=True)
    with installed(_NAME, _say, node_loss_s=_NODE_LOSS_S, node_monitor_grace_s=_GRACE_S) as (
        cluster,
        target,
    ):
        if "kubeflow" in options.systems:
            cluster.add_kubeflow_trainer(_say)
        for key in options.systems:
            _run(Runner(cluster, target, key, SYSTEMS[key]), key, options)
    found = _load(options.out)
    print(f"\n{machine()}\n\n{table.markdown(found)}\n\n{table.MEANING}")
    return 0


def _run(runner: Runner, key: str, options: argparse.Namespace) -> None:
    system = SYSTEMS[key]
    try:
        for fault in options.faults:
            if fault in {*SAME, *OURS_ALONE} and not system.is_ours:
                continue
            for number in range(count := options.ours if system.is_ours else options.peers):
                found = runner.measure(fault, options.limit)
                _say(f"{system.title}, {fault} {number + 1}/{count}: {_told(found)}")
                _save(options.out, [*_load(options.out), found])
    finally:
        runner.end()


def _told(found: Recovery) -> str:
    if found.first_step_s is None:
        return f"no step within {found.limit_s:.0f} s"
    new = "none" if found.new_step_s is None else f"{found.new_step_s:.1f} s"
    return f"first step {found.first_step_s:.1f} s, new step {new}, {found.lost_steps} steps lost"


def _load(path: Path) -> list[Recovery]:
    return [Recovery(**one) for one in json.loads(path.read_text())] if path.exists() else []


def _save(path: Path, found: list[Recovery]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([dataclasses.asdict(one) for one in found], indent=1) + "\n")


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
