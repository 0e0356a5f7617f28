"""``kubectl tpujob list|status|events|wait|submit|suspend|resume``: jobs in a cluster."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from tpujob_client.job import ENDS, Job, event_time
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.cli import tables
from tpujob_operator.cli.access import add_access, client_of
from tpujob_operator.cli.completion import add_name
from tpujob_operator.cli.files import read_objects


def add(commands: Any) -> None:
    """The commands' arguments."""
    shown = _command(commands, "list", _list, "the jobs of a namespace", name=False)
    shown.add_argument("-A", "--all-namespaces", action="store_true", help="of the whole cluster")
    _command(commands, "status", _status, "what a job does, and what stands in its way")
    _command(commands, "events", _events, "what has happened to a job")
    waiting = _command(commands, "wait", _wait, "wait for the end of a job; 1 if it fails")
    waiting.add_argument(
        "--for",
        dest="condition",
        choices=[kind.value for kind in ConditionType],
        help="wait for this condition instead",
    )
    waiting.add_argument("--timeout", type=float, metavar="S", help="seconds; default: for ever")
    submit = _command(
        commands, "submit", _submit, "check the jobs of a file, and create them", name=False
    )
    submit.add_argument("file", metavar="FILE", help="a manifest with jobs; - is standard input")
    _command(commands, "suspend", _suspend, "have a job save and give up its pods")
    _command(commands, "resume", _resume, "let a suspended job go on")


def _command(commands: Any, verb: str, run: Any, words: str, *, name: bool = True) -> Any:
    parser: argparse.ArgumentParser = commands.add_parser(verb, help=words)
    if name:
        add_name(parser)
    add_access(parser)
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    parser.set_defaults(run=run)
    return parser


def _list(given: argparse.Namespace) -> int:
    found = client_of(given).list(everywhere=given.all_namespaces)
    if given.output == "json":
        items = [job.raw for job in found]
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1))
        return 0
    table = Table()
    for heading in ("namespace", "name", "state", "slices", "step", "restarts", "goodput"):
        table.add_column(heading)
    for job in found:
        table.add_row(*_row(job))
    Console().print(table)
    return 0


def _row(job: Job) -> list[str]:
    status = job.status
    goodput = status.goodput.ratio if status.goodput else None
    slices = f"{status.slices.running}/{status.slices.wanted}" if status.slices else ""
    return [
        job.namespace,
        job.name,
        status.state.value if status.state else "",
        slices,
        str(status.step or ""),
        str(status.restarts or ""),
        "" if goodput is None else f"{100 * goodput:.1f} %",
    ]


def _status(given: argparse.Namespace) -> int:
    job = client_of(given).get(given.name)
    if given.output == "json":
        print(json.dumps(job.raw.get("status", {}), indent=1))
        return 0
    status, console = job.status, Console()
    columns = ("namespace", "name", "state", "slices", "step", "restarts", "goodput")
    line = ", ".join(f"{key} {cell}" for key, cell in zip(columns, _row(job), strict=True) if cell)
    console.print(line, highlight=False)
    table = Table(title="Conditions", title_justify="left")
    for heading in ("condition", "status", "reason", "what it means"):
        table.add_column(heading)
    for item in status.conditions:
        table.add_row(item.type, item.status.value, item.reason, item.message)
    console.print(table)
    if status.incidents:
        console.print(tables.incidents(incident.to_json() for incident in status.incidents))
    return 0


def _events(given: argparse.Namespace) -> int:
    found = client_of(given).events(given.name)
    if given.output == "json":
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": found}, indent=1))
        return 0
    for event in found:
        at = event_time(event)
        print(f"{at}  {event['type']:<7}  {event['reason']:<20}  {event['message']}")
    return 0


def _wait(given: argparse.Namespace) -> int:
    wanted = [ConditionType(given.condition)] if given.condition else []
    job = client_of(given).wait(given.name, *wanted, timeout_s=given.timeout)
    met = job.first_true(*wanted, *ENDS)
    assert met is not None  # it was waited for
    _say(given, job, f"{given.name}: {met.type}: {met.message}")
    return 0 if met.type in (wanted or [ConditionType.SUCCEEDED]) else 1


def _submit(given: argparse.Namespace) -> int:
    client = client_of(given)
    for raw, _ in read_objects(given.file, client.namespace):
        made = client.create(raw)
        _say(given, made, f"created {made.namespace}/{made.name}")
    return 0


def _suspend(given: argparse.Namespace) -> int:
    job = client_of(given).suspend(given.name)
    _say(given, job, f"{given.name} saves and gives up its pods; kubectl tpujob resume goes on")
    return 0


def _resume(given: argparse.Namespace) -> int:
    _say(given, client_of(given).resume(given.name), f"{given.name} goes on")
    return 0


def _say(given: argparse.Namespace, job: Job, words: str) -> None:
    print(json.dumps(job.raw, indent=1) if given.output == "json" else words)
    sys.stdout.flush()
