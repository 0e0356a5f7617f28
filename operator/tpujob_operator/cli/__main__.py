"""``kubectl-tpujob``, or ``kubectl tpujob`` where it is on the PATH: what became of a job."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tpujob_operator.cli.cluster import ClusterError, read_job
from tpujob_operator.cli.report import NothingToReportError, Report


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        return _report(given)
    except (ClusterError, NothingToReportError) as error:
        print(error, file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kubectl tpujob", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    report = commands.add_parser(
        "report", help="where a job's time and money went: types of time, incidents, cost"
    )
    report.add_argument("name", help="name of the TPUTrainingJob")
    report.add_argument("-n", "--namespace", help="default: the kubeconfig's")
    report.add_argument("--kubeconfig", metavar="FILE", help="default: as kubectl has it")
    report.add_argument("-o", "--output", choices=["text", "json"], default="text")
    report.add_argument("--picture", type=Path, metavar="FILE.png", help="draw the times as well")
    return parser


def _report(given: argparse.Namespace) -> int:
    report = Report.of(read_job(given.name, given.namespace, given.kubeconfig))
    if given.output == "json":
        print(json.dumps(report.to_json(), indent=1))
    else:
        report.show(Console())
    if given.picture:
        # Imported late: matplotlib takes a second, and only pictures need it.
        from tpujob_operator.cli import picture  # noqa: PLC0415

        picture.draw(report, given.picture)
        print(f"wrote {given.picture}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
