"""Debian packages that the local cluster needs, and the mirror the host uses."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from localcluster.cache import cache_dir, locked

_APT_LOCK_TIMEOUT_S = 600


def ensure_packages(packages: Iterable[str], progress: Callable[[str], None] = print) -> None:
    """Install those of `packages` that are missing; a no-op in milliseconds otherwise.

    Raises:
        RuntimeError: The host has no apt, we are not root, or apt failed; the
            message holds the command to run by hand.
    """
    wanted = list(packages)
    if not _missing(wanted):
        return
    with locked(cache_dir() / "apt.lock", lambda: progress("waiting for another apt run")):
        if missing := _missing(wanted):
            _install(missing, progress)


def _missing(packages: list[str]) -> list[str]:
    if shutil.which("dpkg-query") is None:
        raise RuntimeError(
            f"this host has no dpkg: install {', '.join(packages)} with its own package manager, "
            "or run on Debian or Ubuntu"
        )
    shown = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *packages],
        check=False,  # it fails when any package is unknown, which is an answer
        capture_output=True,
        text=True,
    ).stdout
    installed = {
        line.split()[0] for line in shown.splitlines() if line.split()[1:] == ["installed"]
    }
    return [package for package in packages if package not in installed]


def _install(missing: list[str], progress: Callable[[str], None]) -> None:
    by_hand = f"apt-get update && apt-get install -y --no-install-recommends {' '.join(missing)}"
    if os.geteuid() != 0:
        raise RuntimeError(f"Debian packages are missing; as root, run: {by_hand}")
    progress(f"installing Debian packages: {' '.join(missing)}")
    started = time.monotonic()
    _apt_get(["update"], by_hand)
    _apt_get(["install", "-y", "--no-install-recommends", *missing], by_hand)
    progress(f"installed {len(missing)} Debian packages in {time.monotonic() - started:.0f} s")


def _apt_get(arguments: list[str], by_hand: str) -> None:
    done = subprocess.run(
        # Other software on the machine may run apt just now.
        ["apt-get", "-q", "-o", f"DPkg::Lock::Timeout={_APT_LOCK_TIMEOUT_S}", *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )
    # One unreachable extra repository fails `update`; what is needed may be there all the same.
    if done.returncode and arguments[0] != "update":
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise RuntimeError(f"apt-get failed ({done.returncode}); run: {by_hand}\n{tail}")


def mirror() -> str | None:
    """The Debian mirror this host installs from; None where debootstrap must know one.

    `$TPUJOB_DEBIAN_MIRROR` if set, else the mirror of the host's own apt sources
    where the host is Debian.
    """
    if named := os.environ.get("TPUJOB_DEBIAN_MIRROR"):
        return named
    if shutil.which("apt-get") is None:
        return None
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)"],
        check=False,  # no apt sources at all: then there is no mirror to be read off
        capture_output=True,
        text=True,
    ).stdout
    return choose_mirror(targets, _os_release())


def choose_mirror(targets: str, os_release: dict[str, str]) -> str | None:
    """The URL, among apt's index targets, that serves the host's own Debian release.

    Args:
        targets: Lines of `URL RELEASE COMPONENT`, as printed by `apt-get indextargets`.
        os_release: The variables of /etc/os-release.
    """
    if os_release.get("ID") != "debian":
        return None
    codename = os_release.get("VERSION_CODENAME")
    for line in targets.splitlines():
        url, release, component = [*line.split(), "", "", ""][:3]
        if release == codename and component == "main" and url.startswith("http"):
            return url.rstrip("/")
    return None


def _os_release() -> dict[str, str]:
    try:
        lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {key: value.strip("\"'") for key, _, value in pairs}
