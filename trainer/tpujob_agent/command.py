"""Understand the user's command: which Python programs the fork server can run."""

from __future__ import annotations

import dataclasses
import enum
import re
import shutil
from collections.abc import Sequence
from typing import Any

from tpujob_agent.settings import StartError

_PYTHON = re.compile(r"python(3(\.\d+)?)?$")
#: Options that a forked program can have; others (-i, -V, -x …) are left to an exec.
_FLAGS = frozenset("bBdEIOPqRsSuv")
_WITH_VALUE = frozenset("WXmc")


class Kind(str, enum.Enum):
    """How a program is started."""

    MODULE = "module"  # python -m target
    SCRIPT = "script"  # python target
    CODE = "code"  # python -c target
    EXEC = "exec"  # anything else


_KINDS = {"m": Kind.MODULE, "c": Kind.CODE}


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """A command, taken apart."""

    argv: tuple[str, ...]
    kind: Kind = Kind.EXEC
    interpreter: str = ""
    options: tuple[str, ...] = ()
    target: str = ""
    args: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The program as the fork server is told of it."""
        return dataclasses.asdict(self) | {"kind": self.kind.value}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Program:
        """Inverse of ``to_json``."""
        return cls(
            argv=tuple(raw["argv"]),
            kind=Kind(raw["kind"]),
            interpreter=raw["interpreter"],
            options=tuple(raw["options"]),
            target=raw["target"],
            args=tuple(raw["args"]),
        )

    def as_exec(self) -> Program:
        """The same command, to be exec'd instead of forked."""
        return Program(argv=self.argv)


def parse(argv: Sequence[str]) -> Program:
    """Take a command apart.

    Raises:
        StartError: there is no command.
    """
    if not argv:
        raise StartError("no command: usage is agent.pyz -- COMMAND [ARGUMENTS]")
    found = shutil.which(argv[0])
    if found is None:  # the exec fails, and its end is told and charged as the user's
        return Program(argv=tuple(argv))
    if not _PYTHON.match(argv[0].rpartition("/")[2]):
        return Program(argv=tuple(argv))
    return _python(tuple(argv), found) or Program(argv=tuple(argv))


def _python(argv: tuple[str, ...], interpreter: str) -> Program | None:
    """Follow CPython's own parsing of its command line; None: not a program to fork."""
    options: list[str] = []
    rest = list(argv[1:])
    while rest:
        token = rest.pop(0)
        if not token.startswith("-"):
            return Program(argv, Kind.SCRIPT, interpreter, tuple(options), token, tuple(rest))
        flags, letter, value = _taken_apart(token)
        options += flags
        if not letter:
            continue
        if letter not in _WITH_VALUE or not (value or rest):
            return None
        value = value or rest.pop(0)
        if letter in _KINDS:
            return Program(argv, _KINDS[letter], interpreter, tuple(options), value, tuple(rest))
        options.append(f"-{letter}{value}")
    return None


def _taken_apart(token: str) -> tuple[list[str], str, str]:
    """``-uXdev`` as flags (``-u``), the letter that is no flag (``X``), and its value (``dev``)."""
    flags: list[str] = []
    for at, letter in enumerate(token[1:], start=1):
        if letter not in _FLAGS:
            return flags, letter, token[at + 1 :]
        flags.append(f"-{letter}")
    return (flags, "", "") if flags else (flags, "-", "")
