"""Slow commands with progress."""

import sys

import pytest

from localcluster.imagerun import run_slowly


def test_picked_lines_are_told() -> None:
    """The lines that `pick` chooses reach the reader as they come, the others do not."""
    told: list[str] = []
    run_slowly(
        ["printf", r"a\nSTEP 1\nb"],
        "thing",
        told.append,
        pick=lambda line: line.lower() if line.startswith("STEP") else None,
    )

    assert [line.partition(": ")[2] for line in told] == ["step 1"]


def test_failure_shows_the_end_of_the_output() -> None:
    """A command that fails is named, with its exit status and its last lines."""
    with pytest.raises(RuntimeError, match=r"(?s)thing failed \(3\): .*the reason$"):
        run_slowly(["sh", "-c", "echo noise; echo the reason >&2; exit 3"], "thing", print)


def test_environment_is_added() -> None:
    """Variables reach the command on top of our own."""
    check = "import os, sys; sys.exit(not (os.environ['MINE'] == '1' and 'PATH' in os.environ))"

    run_slowly([sys.executable, "-c", check], "thing", print, env={"MINE": "1"})
