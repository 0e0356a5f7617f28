"""``kubectl tpujob doctor``: what of a cluster keeps jobs from running, and what to do."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tpujob_operator.api.models import TPUTrainingJob, parse_job
from tpujob_operator.api.status import Condition
from tpujob_operator.cli.access import add_access, client_of
from tpujob_operator.cli.checks import Check, Level, examine
from tpujob_operator.cli.completion import add_name
from tpujob_operator.cli.files import read_jobs
from tpujob_operator.cli.jobchecks import examine_job

if TYPE_CHECKING:
    from tpujob_client.client import Client

_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.BAD: "red"}


def add(commands: Any) -> None:
    """The command's arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor", help="what of a cluster keeps jobs from running; 1 if anything does"
    )
    job = parser.add_mutually_exclusive_group()
    add_name(job, nargs="?")
    job.add_argument("-f", "--file", metavar="FILE", help="look at jobs that are not submitted yet")
    add_access(parser)
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    parser.set_defaults(run=_run)


def _run(given: argparse.Namespace) -> int:
    from tpujob_operator.cli import inventory, jobreads  # noqa: PLC0415 - bring Kubernetes' client

    jobs = client_of(given)
    cluster = inventory.read(jobs)
    found = list(examine(cluster))
    for job, told in _jobs(given, jobs):
        found += examine_job(jobreads.read_around(jobs, job, told), cluster)
    if given.output == "json":
        print(json.dumps([dataclasses.asdict(check) for check in found], indent=1))
    else:
        Console().print(_table(found))
    return 1 if any(check.level is Level.BAD for check in found) else 0


def _jobs(
    given: argparse.Namespace, jobs: Client
) -> list[tuple[TPUTrainingJob, Sequence[Condition]]]:
    """The jobs that are asked about, and what the operator says of them.

    Raises:
        FileError: the file holds none, or one that is not valid.
        ClusterError: there is none of this name.
    """
    if given.file:
        return [(job, ()) for job in read_jobs(given.file, jobs.namespace)]
    if not given.name:
        return []
    found = jobs.get(given.name)
    return [(parse_job(found.raw), found.status.conditions)]


def _table(found: list[Check]) -> Table:
    table = Table()
    for heading in ("", "what", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for check in found:
        style = _STYLES[check.level]
        level = f"[{style}]{check.level.value}[/{style}]"
        table.add_row(level, check.what, check.found, check.advice)
    return table
