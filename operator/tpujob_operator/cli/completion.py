"""Completion of commands, options and names of jobs, for shells and for kubectl."""

from __future__ import annotations

import argparse
import io
import os
import shlex
from collections.abc import Sequence
from typing import Any

import argcomplete
from argcomplete.shell_integration import shellcode

from tpujob_client.errors import ClusterError
from tpujob_operator.cli.access import client_of

PROGRAM = "kubectl-tpujob"
#: A person waits for it with a finger on the key.
_PATIENCE_S = 2
#: Of kubectl's completion: there are no files to be offered besides.
_NO_FILES = ":4"


def add(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser(
        "completion", help="the script that makes a shell complete kubectl-tpujob"
    )
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])
    parser.set_defaults(run=_run)


def add_name(parser: argparse._ActionsContainer, nargs: str | None = None) -> None:
    """The argument that names a job, completed by asking the cluster; ``?``: it may be missing."""
    name: Any = parser.add_argument("name", nargs=nargs, help="name of the TPUTrainingJob")
    name.completer = _names


def for_shell(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks by the script of ``completion``, and end; else do nothing."""
    argcomplete.autocomplete(parser)


def for_kubectl(parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """What kubectl shows for the words after ``kubectl tpujob``, the last of them unfinished."""
    line = shlex.join([PROGRAM, *words[:-1]]) + " " + "".join(words[-1:])
    os.environ |= {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line.encode())),
    }
    said = io.StringIO()
    argcomplete.autocomplete(parser, exit_method=lambda _: None, output_stream=said)
    return "\n".join([*said.getvalue().split(), _NO_FILES])


def _run(given: argparse.Namespace) -> int:
    print(shellcode([PROGRAM], shell=given.shell))
    return 0


def _names(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    try:
        return [job.name for job in client_of(parsed_args).list(timeout_s=_PATIENCE_S)]
    except ClusterError:
        return []
