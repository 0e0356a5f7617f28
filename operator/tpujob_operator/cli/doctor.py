"""``kubectl tpujob doctor``: what of a cluster keeps jobs from running, and what to do."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from rich.console import Console
from rich.table import Table

from tpujob_operator.cli.access import add_access, client_of
from tpujob_operator.cli.checks import Check, Level, examine

_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.BAD: "red"}


def add(commands: Any) -> None:
    """The command's arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor", help="what of a cluster keeps jobs from running; 1 if anything does"
    )
    add_access(parser)
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    parser.set_defaults(run=_run)


def _run(given: argparse.Namespace) -> int:
    from tpujob_operator.cli import inventory  # noqa: PLC0415 - brings Kubernetes' client

    found = list(examine(inventory.read(client_of(given))))
    if given.output == "json":
        print(json.dumps([dataclasses.asdict(check) for check in found], indent=1))
    else:
        Console().print(_table(found))
    return 1 if any(check.level is Level.BAD for check in found) else 0


def _table(found: list[Check]) -> Table:
    table = Table()
    for heading in ("", "what", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for check in found:
        style = _STYLES[check.level]
        level = f"[{style}]{check.level.value}[/{style}]"
        table.add_row(level, check.what, check.found, check.advice)
    return table
