"""Where built things live between runs, and how two processes share them."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir(*parts: str) -> Path:
    """The cache folder (or one below it), made if missing.

    It is `$TPUJOB_CACHE`, else `$XDG_CACHE_HOME/tpujob`, else `~/.cache/tpujob`.
    """
    folder = _root().joinpath(*parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _root() -> Path:
    if named := os.environ.get("TPUJOB_CACHE"):
        return Path(named).absolute()
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches).absolute() / "tpujob"
    return Path.home() / ".cache" / "tpujob"


@contextmanager
def locked(path: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold an exclusive lock on `path`; the kernel drops it when the process dies.

    Args:
        path: The lock file, made if missing and left in place; the holder may unlink it.
        on_wait: Called if another process holds the lock.
    """
    while True:
        with path.open("a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(handle, fcntl.LOCK_EX)
            # Whoever waited for a file that its holder unlinked has locked out nobody.
            if _is_at(path, handle.fileno()):
                yield
                return


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
