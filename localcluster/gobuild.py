"""One `go build` with a heartbeat: what is built, how far it is, how long it took."""

import os
import queue
import shutil
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from localcluster.progress import Progress

_GO_HOME = Path("/usr/local/go/bin/go")
_BEAT_S = 10.0
_TAIL_LINES = 20


def go_command() -> str:
    """The Go program of this host.

    Raises:
        RuntimeError: There is none.
    """
    if found := shutil.which("go"):
        return found
    if _GO_HOME.is_file():
        return str(_GO_HOME)
    raise RuntimeError(
        "Go is missing: install Go 1.26 or newer from https://go.dev/dl (it must be on PATH or in "
        "/usr/local/go); it builds the cluster's programs"
    )


def has_go() -> bool:
    """Whether `go_command` would succeed."""
    return shutil.which("go") is not None or _GO_HOME.is_file()


@dataclass
class Build:
    """A run of `go build` for some programs of one wrapper module."""

    label: str
    source: Path
    arguments: list[str]
    packages: dict[str, str]
    """Go package of each program."""
    progress: Progress

    def __post_init__(self) -> None:
        self._started = time.monotonic()
        self._compiled = 0
        self._downloaded = 0
        self._total = 0
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)

    def run(self, out: Path) -> None:
        """Build the programs into the folder `out`, named by the keys of `packages`.

        Raises:
            RuntimeError: The build failed; the message ends with Go's last lines.
        """
        self.progress(f"{self.label}: building")
        self._total = self._count_packages()
        self._go(["build", "-v", *self.arguments, "-o", f"{out}/", *self.packages.values()])
        for name, package in self.packages.items():
            # go names a program after its package: .../server/v3 becomes `server`.
            built = out / _program_name(package)
            if built.name != name:
                built.rename(out / name)
        self.progress(f"{self.label}: built in {self._elapsed()}")

    def _count_packages(self) -> int:
        tags = [argument for argument in self.arguments if argument.startswith("-tags=")]
        return len(
            list(self._go(["list", "-mod=readonly", "-deps", *tags, *self.packages.values()]))
        )

    def _go(self, arguments: list[str]) -> list[str]:
        process = subprocess.Popen(
            [go_command(), *arguments],
            cwd=self.source,
            env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        output = []
        try:
            for line in self._lines_with_beat(process):
                output.append(line)
                self._note(line)
        finally:
            process.kill()
            code = process.wait()
            assert process.stdout is not None
            process.stdout.close()
        if code:
            shown = "\n".join(self._tail)
            raise RuntimeError(
                f"{self.label}: go {arguments[0]} failed ({code}); it needs the Go module proxy "
                f"(see `go env GOPROXY`) on a first run\n{shown}"
            )
        return output

    def _lines_with_beat(self, process: "subprocess.Popen[str]") -> Iterator[str]:
        lines: queue.Queue[str | None] = queue.Queue()
        assert process.stdout is not None
        threading.Thread(target=_pump, args=(process.stdout, lines), daemon=True).start()
        next_beat = time.monotonic() + _BEAT_S
        while True:
            try:
                line = lines.get(timeout=max(0.0, next_beat - time.monotonic()))
            except queue.Empty:
                self.progress(f"{self.label}: {self._state()}, {self._elapsed()}")
                next_beat = time.monotonic() + _BEAT_S
                continue
            if line is None:
                process.wait()
                return
            yield line

    def _note(self, line: str) -> None:
        self._tail.append(line)
        if line.startswith("go: downloading "):
            self._downloaded += 1
        elif self._total and " " not in line:
            self._compiled += 1

    def _state(self) -> str:
        if not self._total:
            return f"{self._downloaded} modules downloaded"
        return f"{self._compiled} of at most {self._total} packages compiled"

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._started:.0f} s"


def _pump(stream: IO[str], lines: "queue.Queue[str | None]") -> None:
    for line in stream:
        lines.put(line.rstrip())
    lines.put(None)


def _program_name(package: str) -> str:
    parts = package.split("/")
    last_is_version = parts[-1][:1] == "v" and parts[-1][1:].isdigit()
    return parts[-2] if last_is_version else parts[-1]
