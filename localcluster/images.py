"""Builds the images of the Dockerfile, with a Docker engine or without.

`build("operator")` returns in milliseconds when nothing that goes into the image has
changed. Without an engine, buildah builds it on a base made from Debian packages.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localcluster import baseimage, imagearchive, imagefile, imagepip
from localcluster.cache import cache_dir, locked
from localcluster.imagerun import run_slowly
from localcluster.imagestore import opened
from localcluster.progress import Progress

TARGETS = ("operator", "trainer")

_ROOT = Path(__file__).resolve().parent.parent
_KEPT_ARCHIVES = 3


@dataclass(frozen=True)
class Archive:
    """An image in a file.

    Attributes:
        path: A docker-archive, layers uncompressed.
        reference: The name under which nodes and manifests know the image.
        digest: The image ID, `sha256:…`; it changes with every change of the content.
    """

    path: Path
    reference: str
    digest: str


def reference(target: str) -> str:
    """The image name of a target, as charts and pods use it (with IfNotPresent)."""
    return f"tpujob/{target}:dev"


def build(target: str, *, progress: Progress | None = None, root: Path = _ROOT) -> Archive:
    """The image of a target of the Dockerfile, built if anything in it has changed.

    Args:
        target: A stage of the Dockerfile, `operator` or `trainer`.
        progress: Receives lines for people; by default they go to standard error.
        root: The checkout to build from.

    Raises:
        ValueError: There is no such target, or the Dockerfile copies what is not there.
        RuntimeError: The build failed, or this host cannot build; the message says why.
    """
    progress = progress or _to_stderr
    stages = imagefile.closure(imagefile.parse((root / "Dockerfile").read_text("utf-8")), target)
    if (path := _archive_path(target, root, stages)).exists():
        path.touch()  # the archives longest unused go first
        return _read(path, target)
    with locked(
        cache_dir("images") / f"{target}.lock", lambda: progress(f"{target}: in the making")
    ):
        return _build_snapshot(target, root, stages, progress)


def _build_snapshot(
    target: str, root: Path, stages: list[imagefile.Stage], progress: Progress
) -> Archive:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tpujob-context-") as folder:
        context = Path(folder)
        imagefile.snapshot(root, stages, context)
        (context / "pyproject.toml").write_bytes((root / "pyproject.toml").read_bytes())
        path = _archive_path(target, context, stages)
        if not path.exists():
            partial = path.with_suffix(".partial")
            partial.unlink(missing_ok=True)  # of a killed build; buildah would refuse to go on
            make = _with_docker if has_docker() else _with_buildah
            make(target, context, partial, progress)
            partial.replace(path)
            _prune(path.parent, target)
            size_mb = path.stat().st_size / 1e6
            progress(f"{target}: {size_mb:.0f} MB, {time.monotonic() - started:.1f} s")
    return _read(path, target)


def _archive_path(target: str, root: Path, stages: list[imagefile.Stage]) -> Path:
    """Where the image of this content is kept: the name holds a hash of all that goes in."""
    parts = [imagefile.digest(root, stages), baseimage.recipe_key(), _version(root)]
    key = imagefile.combined([*parts, platform.machine()])
    return cache_dir("images", "archives") / f"{target}-{key[:16]}.tar"


def _version(root: Path) -> str:
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project["version"])


def _read(path: Path, target: str) -> Archive:
    return Archive(path, reference(target), imagearchive.image_id(path))


def _prune(archives: Path, target: str) -> None:
    """Keep the newest few; another checkout on this machine may be using its own."""
    found = sorted(archives.glob(f"{target}-*.tar"), key=lambda path: path.stat().st_mtime)
    for old in found[:-_KEPT_ARCHIVES]:
        old.unlink(missing_ok=True)


def has_docker() -> bool:
    """Whether images are built by a Docker engine: one answers.

    `TPUJOB_IMAGE_BUILDER`, `docker` or `buildah`, decides it where it is set.
    """
    if named := os.environ.get("TPUJOB_IMAGE_BUILDER"):
        return named == "docker"
    return docker_answers()


def docker_answers() -> bool:
    """Whether a Docker engine answers here."""
    with suppress(FileNotFoundError, subprocess.TimeoutExpired):
        asked = ["docker", "info", "--format", "{{.ServerVersion}}"]
        return subprocess.run(asked, check=False, capture_output=True, timeout=10).returncode == 0
    return False


def _with_docker(target: str, context: Path, archive: Path, progress: Progress) -> None:
    with tempfile.TemporaryDirectory(prefix="tpujob-pip-") as lent:
        built = ["docker", "build", "--progress", "plain", "--tag", reference(target)]
        run_slowly(
            [*built, *_build_arguments(target, context, Path(lent))],
            target,
            progress,
            pick=_docker_stage,
            env={"DOCKER_BUILDKIT": "1"},  # RUN --mount needs it
        )
    run_slowly(["docker", "save", "--output", archive, reference(target)], target, progress)


def _with_buildah(target: str, context: Path, archive: Path, progress: Progress) -> None:
    stages = list(imagefile.parse((context / "Dockerfile").read_text("utf-8")))
    with opened(progress) as store, tempfile.TemporaryDirectory(prefix="tpujob-pip-") as lent:
        store.buildah(["rm", "--all"], "what a killed build left")
        baseimage.ensure(store, progress)
        image = Path(lent) / "image-id"
        built = ["bud", "--isolation", "chroot", "--pull=never", "--layers", "--network", "host"]
        named: list[str | Path] = ["--tag", reference(target), "--iidfile", image]
        store.buildah(
            [*built, *named, *_build_arguments(target, context, Path(lent))],
            target,
            pick=lambda line: _stage_begun(line, stages),
        )
        # By its ID, or the archive would list the store's own name for it as well.
        exported = f"docker-archive:{archive}:{reference(target)}"
        pushed = ["push", "--quiet", "--disable-compression", image.read_text("utf-8").strip()]
        store.buildah([*pushed, exported], f"{target}, writing the archive")
        store.buildah(["rmi", "--prune"], "images of earlier code")


def _build_arguments(target: str, context: Path, lent: Path) -> list[str | Path]:
    """What Docker and buildah are told alike; `lent` is an empty folder for secrets."""
    version = ["--build-arg", f"VERSION={_version(context)}"]
    file: list[str | Path] = ["--file", context / "Dockerfile"]
    return ["--target", target, *version, *imagepip.lend(lent), *file, context]


def _docker_stage(line: str) -> str | None:
    """The stage whose slow step begins with this line of Docker's output, if one does."""
    begun = re.match(r"#\d+ \[(\S+) \d+/\d+\] RUN", line)
    return f"stage {begun[1]}" if begun else None


def _stage_begun(line: str, stages: list[str]) -> str | None:
    """The name of the stage that begins with this line of buildah's output, if one does."""
    begun = re.match(r"\[(\d+)/\d+\] STEP 1/", line)
    return f"stage {stages[int(begun[1]) - 1]}" if begun else None


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `image build`."""
    parser.add_argument(
        "target",
        nargs="?",
        default="all",
        choices=[*TARGETS, "all"],
        help="which image to build (default: all)",
    )


def build_command(args: argparse.Namespace) -> int:
    """Build `args.target`; prints reference, digest and path of each image, by tabs."""
    for target in TARGETS if args.target == "all" else [args.target]:
        archive = build(target)
        print(archive.reference, archive.digest, archive.path, sep="\t")
    return os.EX_OK


def main(argv: list[str] | None = None) -> int:
    """`python -m localcluster.images [operator|trainer|all]`."""
    parser = argparse.ArgumentParser(prog="localcluster.images", description=__doc__)
    add_arguments(parser)
    return build_command(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
