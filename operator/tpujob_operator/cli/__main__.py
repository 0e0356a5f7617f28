"""``kubectl-tpujob``, or ``kubectl tpujob`` where it is on the PATH: before a job and after it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from tpujob_client.errors import ClusterError
from tpujob_operator.cli import completion, doctor, jobs, logs, plan, render, report
from tpujob_operator.cli.files import FileError

#: As shells have it.
_INTERRUPTED = 128 + signal.SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = _parser()
    completion.for_shell(parser)
    given = parser.parse_args(arguments)
    try:
        status: int = given.run(given)
    except (ClusterError, FileError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def complete() -> int:
    """Entry point of ``kubectl_complete-tpujob``, which kubectl looks for beside the plugin."""
    print(completion.for_kubectl(_parser(), sys.argv[1:]))
    return 0


def _parser() -> argparse.ArgumentParser:
    words = "Training jobs on TPUs: before they run, while they run, and where their time went."
    parser = argparse.ArgumentParser(prog="kubectl tpujob", description=words)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (plan, render, jobs, logs, report, doctor, completion):
        command.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
