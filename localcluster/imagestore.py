"""Buildah with a store of its own, in the cache, that a killed build cannot damage."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from localcluster.cache import cache_dir, locked
from localcluster.debian import ensure_packages
from localcluster.imagerun import run_slowly
from localcluster.progress import Progress

#: Everything below dies with this process, and with it every mount that it made. So an
#: interrupted build leaves neither processes nor mounts, whatever signal ended it.
CONFINED = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
)

_PACKAGES = ("buildah", "debootstrap", "debian-archive-keyring", "util-linux")


class Store:
    """A container storage and its buildah; made by `opened`."""

    def __init__(self, root: Path, scratch: Path, progress: Progress) -> None:
        self.root = root
        self.scratch = scratch
        self._progress = progress

    def buildah(
        self,
        arguments: Sequence[str | Path],
        what: str,
        *,
        pick: Callable[[str], str | None] = lambda _: None,
    ) -> float:
        """Run one buildah command; see `run_slowly` for the arguments and the result."""
        command = [
            *(
                *CONFINED,
                "buildah",
                "--storage-driver",
                os.environ.get("STORAGE_DRIVER", "overlay"),
            ),
            *("--root", self.root / "storage", "--runroot", self.scratch / "run", *arguments),
        ]
        # Cache mounts of RUN steps (pip's downloads) are kept below TMPDIR.
        env = {"TMPDIR": str(self.root / "tmp")}
        return run_slowly(command, what, self._progress, pick=pick, env=env)

    def has(self, image: str) -> bool:
        """Whether the storage holds an image of this name."""
        try:
            self.buildah(
                ["inspect", "--type", "image", "--format", "{{.FromImageID}}", image], image
            )
        except RuntimeError:
            return False
        return True


@contextmanager
def opened(progress: Progress) -> Iterator[Store]:
    """The store, for one process at a time; installs buildah if it is missing.

    Raises:
        RuntimeError: We are not root, or buildah cannot be installed.
    """
    if os.geteuid() != 0:
        raise RuntimeError("without a Docker engine, building images needs root (buildah, chroot)")
    ensure_packages(_PACKAGES, progress)
    root = cache_dir("images")
    waiting = "waiting for another image build on this machine"
    with (
        locked(root / "store.lock", lambda: progress(waiting)),
        tempfile.TemporaryDirectory(prefix="tpujob-images-") as scratch,
    ):
        (root / "tmp").mkdir(exist_ok=True)
        yield Store(root, Path(scratch), progress)
