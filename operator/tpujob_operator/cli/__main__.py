"""``kubectl-tpujob``, or ``kubectl tpujob`` where it is on the PATH: before a job and after it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tpujob_client.errors import ClusterError
from tpujob_operator.cli import doctor, jobs, plan, render, report
from tpujob_operator.cli.files import FileError


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        status: int = given.run(given)
    except (ClusterError, FileError) as error:
        print(error, file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kubectl tpujob", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (plan, render, jobs, report, doctor):
        command.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
