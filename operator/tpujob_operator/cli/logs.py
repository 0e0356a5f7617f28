"""``kubectl tpujob logs``: what a job's workers print."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from tpujob_client.sources import place_of
from tpujob_operator.cli.access import add_access, client_of
from tpujob_operator.cli.completion import add_name


def add(commands: Any) -> None:
    """The command's arguments."""
    parser: argparse.ArgumentParser = commands.add_parser("logs", help="what a job's workers print")
    add_name(parser)
    add_access(parser)
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    parser.add_argument("--attempt", type=_number, help="of this one alone")
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--worker", type=_worker, metavar="SLICE/HOST", help="of this one alone")
    whose.add_argument("--rank", type=_number, help="of the worker with this JAX process id now")
    whose.add_argument("--coordinator", action="store_true", help="of the coordinator instead")
    when = parser.add_mutually_exclusive_group()
    when.add_argument(
        "-p", "--previous", action="store_true", help="of the containers' runs before"
    )
    when.add_argument("-f", "--follow", action="store_true", help="go on until the job has ended")
    parser.add_argument("--tail", type=_number, metavar="N", help="the last N lines of each")
    parser.set_defaults(run=_run)


def _number(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def _worker(text: str) -> str:
    try:
        place_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _run(given: argparse.Namespace) -> int:
    chosen = ("attempt", "worker", "rank", "coordinator", "previous", "follow", "tail")
    options = {name: getattr(given, name) for name in chosen}
    is_one = given.coordinator or given.worker is not None or given.rank is not None
    for line in client_of(given).logs(given.name, **options):
        if given.output == "json":
            print(json.dumps({"worker": line.worker, "line": line.text}))
        else:
            print(line.text if is_one else f"{line.worker}  {line.text}")
        sys.stdout.flush()
    return 0
