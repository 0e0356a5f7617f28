"""Whether this host can run a local cluster, in one sentence."""

import contextlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from localcluster.debian import ensure_packages
from localcluster.gobuild import has_go

_INOTIFY_INSTANCES = 1024
_ELSEWHERE = "use CLUSTER=kind with a Docker engine, or CLUSTER=current with a cluster you have"
_CONTROL_PLANE = ["openssl"]
_NODES = [
    *("runc", "containernetworking-plugins", "iproute2", "nftables", "iptables", "conntrack"),
    *("util-linux", "mount", "procps", "ca-certificates"),
]
_NODE_TOOLS = ["runc", "ip", "nft", "iptables", "conntrack", "unshare", "nsenter", "mount"]
# Debian's place first; others put the plugins where their documentation says.
_CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")
# Without the first, a Service is unreachable from pods on the node of its endpoint.
_MODULES = ("br_netfilter", "overlay")


def why_not(full: bool) -> str | None:  # noqa: PLR0911 (one line per reason reads best)
    """Why no cluster can run here, with what would work; None if one can.

    Args:
        full: With nodes and containers, not only a control plane.
    """
    if sys.platform != "linux":
        return f"a local cluster needs Linux, this is {platform.system()}: {_ELSEWHERE}"
    if not has_go():
        return (
            "a local cluster needs Go 1.26 or newer to build Kubernetes, on PATH or in "
            f"/usr/local/go: install it from https://go.dev/dl, or {_ELSEWHERE}"
        )
    if missing := _missing_tools(_CONTROL_PLANE):
        return f"a local cluster needs {missing}: install it, or {_ELSEWHERE}"
    if not full:
        return None
    if os.geteuid() != 0:
        return f"a local cluster with nodes needs root: run it as root, or {_ELSEWHERE}"
    if not _may_make_namespaces():
        return (
            "a local cluster with nodes needs to make namespaces and mounts (CAP_SYS_ADMIN), which "
            f"this container may not: run it on the host itself, or {_ELSEWHERE}"
        )
    missing = _missing_tools(_NODE_TOOLS)
    if not missing and not _can_install() and cni_plugins() is None:
        missing = f"the CNI plugins in {' or '.join(_CNI_FOLDERS)}"
    if missing:
        return f"a local cluster with nodes needs {missing}: install it, or {_ELSEWHERE}"
    return None


class HostUnfitError(RuntimeError):
    """This host cannot run a local cluster; the message says what would work."""


def prepare(full: bool) -> None:
    """Install what is missing, where apt is there to do it.

    Raises:
        HostUnfitError: This host cannot run a cluster (`why_not`).
    """
    if reason := why_not(full):
        raise HostUnfitError(reason)
    wanted = [*_CONTROL_PLANE, *(_NODES if full else [])]
    lacking = _missing_tools([*_CONTROL_PLANE, *(_NODE_TOOLS if full else [])])
    if lacking or (full and cni_plugins() is None):
        ensure_packages(wanted)
    if full and shutil.which("modprobe"):
        # Where they are built in or loaded already, modprobe's opinion does not matter.
        subprocess.run(["modprobe", "--all", "--quiet", *_MODULES], check=False)
    if full:
        _allow_watches()


def _allow_watches() -> None:
    """Every kubelet and containerd holds a dozen inotify instances; 128 do for two clusters."""
    limit = Path("/proc/sys/fs/inotify/max_user_instances")
    with contextlib.suppress(OSError):  # a container may not, and one cluster goes without
        if int(limit.read_text()) < _INOTIFY_INSTANCES:
            limit.write_text(str(_INOTIFY_INSTANCES))


def cni_plugins() -> Path | None:
    """The folder of the container network plugins, None if there is none."""
    found = (Path(folder) for folder in _CNI_FOLDERS if Path(folder, "bridge").exists())
    return next(found, None)


def _missing_tools(tools: list[str]) -> str:
    if _can_install():
        return ""  # `prepare` does
    return ", ".join(tool for tool in tools if shutil.which(tool) is None)


def _can_install() -> bool:
    return shutil.which("apt-get") is not None and os.geteuid() == 0


def _may_make_namespaces() -> bool:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    cap_sys_admin = 1 << 21
    return bool(int(effective.split()[1], 16) & cap_sys_admin)
