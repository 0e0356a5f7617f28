"""The base image, made from Debian packages where no registry can be reached.

It stands in for the official `python:3.13-slim`: the same Debian release, the same
Python minor version, `python` and `python3` in /usr/local/bin. It has `venv` but no
`pip` outside one. It is stored under the official short name, which buildah looks up
among local images first, so the Dockerfile's FROM finds it unchanged.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from localcluster import imagearchive
from localcluster.cache import cache_dir, locked
from localcluster.debian import mirror
from localcluster.imagerun import run_slowly
from localcluster.imagestore import CONFINED, Store
from localcluster.progress import Progress

NAME = "python:3.13-slim"

_SUITE = "trixie"
_PYTHON = "python3.13"
_PACKAGES = ("python3", "python3-venv", "ca-certificates")
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Nothing a container needs: 150 of 270 MB.
_DROPPED = (
    *("usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale"),
    *("var/cache/apt", "var/lib/apt/lists", "var/log"),
    *(f"usr/lib/{_PYTHON}/test", f"usr/lib/{_PYTHON}/EXTERNALLY-MANAGED"),
)
_ENV = (
    "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG=C.UTF-8",
    "PYTHON_VERSION=3.13",
)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def recipe_key() -> str:
    """A hash of everything that decides what the base image holds, in hexadecimal."""
    recipe = [_SUITE, _PYTHON, _PACKAGES, _DROPPED, _ENV, platform.machine()]
    return hashlib.sha256(json.dumps(recipe).encode()).hexdigest()


def ensure(store: Store, progress: Progress) -> None:
    """Have the base image in the store, under `NAME`."""
    kept = _kept_name()
    if not store.has(kept):
        store.buildah(["pull", "--quiet", f"docker-archive:{archive(progress)}"], "base image")
    store.buildah(["tag", kept, NAME], "base image")


def archive(progress: Progress) -> Path:
    """The base image as a docker-archive in the cache; made the first time (about 40 s)."""
    folder = cache_dir("images")
    path = folder / f"base-{recipe_key()[:12]}.tar"
    with locked(folder / "base.lock", lambda: progress("waiting for the base image in the making")):
        if not path.exists():
            _make(folder, path, progress)
    return path


def _kept_name() -> str:
    return f"{NAME}-{recipe_key()[:12]}"


def _make(folder: Path, path: Path, progress: Progress) -> None:
    started = time.monotonic()
    progress(f"making the base image from Debian {_SUITE} packages (about 40 s, once)")
    for left in folder.glob("base-making-*"):  # of a killed run
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix="base-making-", dir=folder) as scratch:
        _bootstrap(Path(scratch) / "root", folder, progress)
        _write_archive(Path(scratch) / "root", Path(scratch) / "base.tar", _kept_name())
        (Path(scratch) / "base.tar").replace(path)
    progress(f"base image made in {time.monotonic() - started:.0f} s")


def _bootstrap(root: Path, cache: Path, progress: Progress) -> None:
    """Install Debian into the folder `root` and reduce it to what a container needs."""
    packages = cache / "debs"
    packages.mkdir(exist_ok=True)
    command: list[str | Path] = [
        *(*CONFINED, "debootstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}"),
        *(f"--cache-dir={packages}", f"--keyring={_KEYRING}", _SUITE, root),
        *([named] if (named := mirror()) else []),
    ]
    try:
        run_slowly(command, "base image", progress, env=_apt_proxy())
    except RuntimeError as error:
        hint = "name a Debian mirror that this host reaches in TPUJOB_DEBIAN_MIRROR"
        raise RuntimeError(f"{error}\nIf the mirror is at fault, {hint}.") from error
    for dropped in _DROPPED:
        path = root / dropped
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for name in ("python", "python3"):
        (root / "usr/local/bin" / name).symlink_to(f"/usr/bin/{_PYTHON}")
    # It was copied from this machine.
    for copied in ("etc/resolv.conf", "etc/hostname"):
        (root / copied).unlink(missing_ok=True)


def _apt_proxy() -> dict[str, str]:
    """The HTTP proxy of the host's apt, for debootstrap, which knows only the variable."""
    if "http_proxy" in os.environ or shutil.which("apt-config") is None:
        return {}
    asked = ["apt-config", "shell", "PROXY", "Acquire::http::Proxy"]
    shown = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    proxy = shown.strip().removeprefix("PROXY=").strip("'")
    return {"http_proxy": proxy} if proxy and proxy != "DIRECT" else {}


def _write_archive(root: Path, archive: Path, name: str) -> None:
    """Write the folder `root` as a docker-archive with one uncompressed layer."""
    layer = archive.with_suffix(".layer")
    # The device nodes are the container runtime's business, and buildah's.
    ignored = ["--exclude=./dev/*", "--exclude=./proc/*", "--exclude=./sys/*"]
    packed: list[str | Path] = ["tar", "--numeric-owner", "--sort=name", *ignored]
    subprocess.run([*packed, "-C", root, "-cf", layer, "."], check=True)
    with layer.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Env": list(_ENV), "Cmd": ["python3"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": f"debootstrap {_SUITE} {' '.join(_PACKAGES)}"}],
    }
    imagearchive.write(archive, name, json.dumps(config).encode(), {digest: layer})
