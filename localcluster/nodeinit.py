"""PID 1 of a node: its mounts, its address, its daemons.

Run as `python -m localcluster.nodeinit SPEC` in a new network, mount, UTS and PID namespace,
standard library only. Killing it is a power cut: the kernel ends every container and drops
every mount of the node. All daemons then find their stock paths (/run/containerd,
/var/lib/kubelet, /var/log/pods), private to this node.
"""

import ctypes
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster.supervisor import Child, Supervisor

_LIBC = ctypes.CDLL(None, use_errno=True)
_BIND, _REC, _SHARED = 0x1000, 0x4000, 1 << 20
_LINK_S = 30.0
TOOLS = Path("/run/tpujob")
SYSCTLS = ("ip_forward", "tcp_orphan_retries")
"""Settings of net.ipv4 that are 1 in our namespaces. By the default of 8 retries, connections to
a node that lost power keep the namespace of a dead cluster for minutes."""


@dataclass(frozen=True)
class Mounts:
    """Folders of the host that the node sees elsewhere."""

    stage: str
    """An empty folder to assemble the node's tree on."""
    binds: dict[str, str]
    """Source of each path of the node; below /run, /mnt or /var."""


def mount_all(mounts: Mounts) -> None:
    """Give the node its own /run, /mnt, /var and /proc."""
    # Assembled aside and entered by descriptor (the working folder): a source may itself lie
    # below a path that gets covered.
    _mount("tmpfs", mounts.stage, "tmpfs", 0)
    os.chdir(mounts.stage)
    for target, source in mounts.binds.items():
        inside = Path(target.lstrip("/"))
        inside.mkdir(parents=True, exist_ok=True)
        _mount(source, str(inside), "", _BIND)
    for top in ("run", "mnt", "var"):
        Path("/", top).mkdir(exist_ok=True)
        _mount(top, f"/{top}", "", _BIND | _REC)
    _mount("proc", "/proc", "proc", 0)
    # The kubelet's volume mounts must reach the containers' namespaces.
    _mount("", "/", "", _REC | _SHARED)
    os.chdir("/")


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    result = _LIBC.mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None
    )
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} on {target}: {os.strerror(number)}")


def configure_link(address: str, gateway: str) -> None:
    """Wait for `eth0`, which comes from outside, and give it its address."""
    deadline = time.monotonic() + _LINK_S
    while "eth0" not in [name for _, name in socket.if_nameindex()]:
        if time.monotonic() > deadline:
            raise TimeoutError("nobody plugged in eth0")
        time.sleep(0.005)
    lines = [
        "link set lo up",
        f"address add {address}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {gateway}",
    ]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines).encode() + b"\n", check=True)
    for name in SYSCTLS:
        Path("/proc/sys/net/ipv4", name).write_text("1", encoding="utf-8")


def main() -> None:
    """Become the node described in the file named on the command line."""
    spec: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    # /proc is still the host's, so this is the PID by which the host knows us.
    pid_file = Path(spec["pid_file"])
    temporary = pid_file.with_suffix(".tmp")
    temporary.write_text(str(Path("/proc/self").readlink()), encoding="utf-8")
    temporary.rename(pid_file)
    socket.sethostname(spec["name"])
    mount_all(Mounts(**spec["mounts"]))
    configure_link(spec["address"], spec["gateway"])
    Supervisor(None, None, [Child(**child) for child in spec["daemons"]]).run()


if __name__ == "__main__":
    main()
