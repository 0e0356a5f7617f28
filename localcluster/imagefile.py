"""Reads a Dockerfile for what a target depends on, so that unchanged images are not rebuilt."""

import hashlib
import json
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_NOT_SOURCE = frozenset({"__pycache__"})


@dataclass
class Stage:
    """One `FROM … AS name` and the instructions below it."""

    base: str
    instructions: list[str] = field(default_factory=list)

    def copies(self) -> Iterator[tuple[str | None, list[str]]]:
        """Each COPY as the stage it copies from (None: the build context) and its sources."""
        for instruction in self.instructions:
            keyword, *words = shlex.split(instruction)
            if keyword.upper() != "COPY":
                continue
            flags = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
            paths = [word for word in words if not word.startswith("--")]
            yield flags.get("from"), paths[:-1]


def parse(dockerfile: str) -> dict[str, Stage]:
    """The named stages of a Dockerfile, in order.

    Raises:
        ValueError: A stage has no name, or an instruction comes before the first FROM.
    """
    stages: dict[str, Stage] = {}
    current: Stage | None = None
    for instruction in _instructions(dockerfile):
        words = instruction.split()
        if words[0].upper() == "FROM":
            if len(words) != 4 or words[2].upper() != "AS":
                raise ValueError(f"Dockerfile: every stage needs a name: {instruction}")
            current = stages[words[3]] = Stage(base=words[1], instructions=[instruction])
        elif current is None:
            raise ValueError(f"Dockerfile: not below a FROM: {instruction}")
        else:
            current.instructions.append(instruction)
    return stages


def _instructions(dockerfile: str) -> Iterator[str]:
    """Logical lines: continuations joined, comments and blank lines dropped."""
    pending = ""
    for line in dockerfile.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if line.endswith("\\"):
            pending += line[:-1]
            continue
        yield (pending + line).strip()
        pending = ""


def closure(stages: dict[str, Stage], target: str) -> list[Stage]:
    """The stages that `target` is made of, bases first.

    Raises:
        ValueError: There is no such stage; the message lists those that exist.
    """
    if target not in stages:
        raise ValueError(
            f"no image target {target!r} in the Dockerfile; it has {', '.join(stages)}"
        )
    found: dict[str, Stage] = {}

    def visit(name: str | None) -> None:
        if name is None or name not in stages or name in found:
            return
        visit(stages[name].base)
        for copied_from, _ in stages[name].copies():
            visit(copied_from)
        found[name] = stages[name]

    visit(target)
    return list(found.values())


def sources(stages: list[Stage]) -> list[str]:
    """Paths in the build context that these stages copy, each once."""
    paths = (
        path
        for stage in stages
        for copied_from, paths in stage.copies()
        if copied_from is None
        for path in paths
    )
    return sorted(set(paths))


def digest(root: Path, stages: list[Stage]) -> str:
    """A hash of the stages' instructions and of every file they copy, in hexadecimal.

    Raises:
        ValueError: The Dockerfile copies something that is not there.
    """
    state = hashlib.sha256()
    for stage in stages:
        state.update("\n".join(stage.instructions).encode())
    for source in sources(stages):
        for path in _files(root / source):
            executable = bool(path.stat().st_mode & 0o100)
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            state.update(f"\n{path.relative_to(root)} {executable} {content}".encode())
    return state.hexdigest()


def snapshot(root: Path, stages: list[Stage], context: Path) -> None:
    """Copy the Dockerfile and what the stages copy into `context`, an empty folder.

    An image is built from such a snapshot, so that what is built is what was hashed,
    whatever is edited meanwhile.
    """
    shutil.copy2(root / "Dockerfile", context)
    for source in sources(stages):
        for path in _files(root / source):
            copy = context / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(
            file
            for file in path.rglob("*")
            if file.is_file() and not _NOT_SOURCE.intersection(file.parts)
        )
    if path.is_file():
        return [path]
    raise ValueError(f"the Dockerfile copies {path}, which is not there")


def combined(parts: list[str]) -> str:
    """One hash, in hexadecimal, of several strings."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
