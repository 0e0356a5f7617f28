"""``kubectl tpujob report``: where a job's time and money went, from its status alone."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from tpujob_client.report import Report
from tpujob_operator.cli import tables
from tpujob_operator.cli.access import add_access, client_of
from tpujob_operator.cli.completion import add_name


def add(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser(
        "report", help="where a job's time and money went: types of time, incidents, cost"
    )
    add_name(parser)
    add_access(parser)
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    parser.add_argument("--picture", type=Path, metavar="FILE.png", help="draw the times as well")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Print the report of a job."""
    report = client_of(given).report(given.name)
    if given.output == "json":
        print(json.dumps(report.to_json(), indent=1))
    else:
        show(report, Console())
    if given.picture:
        # Imported late: matplotlib takes a second, and only pictures need it.
        from tpujob_operator.cli import picture  # noqa: PLC0415

        picture.draw(report, given.picture)
        print(f"wrote {given.picture}", file=sys.stderr)
    return 0


def show(report: Report, console: Console) -> None:
    """Print it for a person."""
    console.print(report.headline(), highlight=False)
    console.print(tables.times(report.seconds, report.wall_s, report.unsettled_s))
    console.print(tables.kinds(report.seconds, report.wall_s, report.unsettled_s))
    if report.status.incidents:
        console.print(tables.incidents(report.incidents()))
