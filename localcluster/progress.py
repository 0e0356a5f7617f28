"""Progress lines."""

from collections.abc import Callable

Progress = Callable[[str], None]


def say(line: str) -> None:
    """Print a progress line at once, also where the output is a pipe."""
    print(line, flush=True)
