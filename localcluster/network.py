"""A cluster's network: one namespace, one bridge, one link to the host.

A cluster owns 10.k.0.0/16 for the first free k: the bridge is .0.1, node i is .0.(10+i)
with pods .(1+i).0/24, and .255.0/30 is the link to the host. The namespace has no name: it
ends with the cluster's processes, and takes its links and the host's route along.
"""

import contextlib
import ipaddress
import json
import socket
import struct
import subprocess

from localcluster.nodeinit import SYSCTLS

BRIDGE = "tpujob0"
# A fixed address: else the bridge takes its ports' lowest, changes it when nodes join, and
# nodes that remember the old one lose the API server for half a minute.
_BRIDGE_MAC = "02:74:70:75:6a:01"
_FIRST_SUBNET, _LAST_SUBNET = 200, 250


def node_address(subnet: int, index: int) -> str:
    """Address of the node number `index`."""
    return f"10.{subnet}.0.{10 + index}"


def pod_range(subnet: int, index: int) -> str:
    """Addresses of the pods of the node number `index`."""
    return f"10.{subnet}.{1 + index}.0/24"


def link_name(node: str) -> str:
    """The bridge's end of a node's link."""
    return f"to-{node}"


def uplink_name(subnet: int) -> str:
    """The host's end of a cluster's link."""
    return f"tpujob{subnet}"


def attach(supervisor_pid: int) -> tuple[int, int]:
    """Link the host and the cluster's namespace, and make the bridge.

    Returns:
        The cluster's k, and the index of the host's end of the link.

    Raises:
        RuntimeError: No subnet is free.
    """
    taken = _routed_networks()
    for subnet in range(_FIRST_SUBNET, _LAST_SUBNET + 1):
        if any(network.overlaps(_network(subnet)) for network in taken):
            continue
        if _make_uplink(subnet, supervisor_pid):
            _configure(subnet, supervisor_pid)
            return subnet, socket.if_nametoindex(uplink_name(subnet))
    raise RuntimeError(
        f"all of 10.{_FIRST_SUBNET}-{_LAST_SUBNET}.0.0/16 are routed elsewhere; see `ip route`"
    )


def _network(subnet: int) -> ipaddress.IPv4Network:
    return ipaddress.ip_network(f"10.{subnet}.0.0/16")  # type: ignore[return-value]


def _routed_networks() -> list[ipaddress.IPv4Network]:
    shown = _run(["ip", "-json", "-4", "route", "show", "table", "all"])
    destinations = [route.get("dst", "default") for route in json.loads(shown or "[]")]
    return [
        ipaddress.IPv4Network(destination, strict=False)
        for destination in destinations
        if destination != "default"
    ]


def _make_uplink(subnet: int, pid: int) -> bool:
    # The name is the claim: it exists once, so two clusters cannot take the same subnet.
    line = f"link add {uplink_name(subnet)} type veth peer uplink netns {pid}"
    done = subprocess.run(
        ["ip", "-batch", "-"], input=line, check=False, capture_output=True, text=True
    )
    if done.returncode and "File exists" not in done.stderr:
        raise RuntimeError(f"cannot make the cluster's network: {done.stderr.strip()}")
    return done.returncode == 0


def _configure(subnet: int, pid: int) -> None:
    _batch(
        [
            "link set lo up",
            f"address add 10.{subnet}.255.2/30 dev uplink",
            "link set uplink up",
            f"link add {BRIDGE} address {_BRIDGE_MAC} type bridge",
            f"address add 10.{subnet}.0.1/24 dev {BRIDGE}",
            f"link set {BRIDGE} up",
        ],
        pid,
    )
    # Per namespace: the host's own settings stay as they are.
    for name in SYSCTLS:
        _run([*_inside(pid), "sh", "-c", f"echo 1 > /proc/sys/net/ipv4/{name}"])
    _batch(
        [
            f"address add 10.{subnet}.255.1/30 dev {uplink_name(subnet)}",
            f"link set {uplink_name(subnet)} up",
            f"route add 10.{subnet}.0.0/16 via 10.{subnet}.255.2",
        ]
    )


def link_node(supervisor_pid: int, subnet: int, index: int, name: str, node_pid: int) -> None:
    """Plug a node's namespace into the bridge; the node configures its own end, `eth0`."""
    link = link_name(name)
    # After a power cut the kernel removes the old link a little later: do not wait for it.
    with contextlib.suppress(RuntimeError):
        _batch([f"link delete {link}"], supervisor_pid)
    _batch(
        [
            f"link add {link} type veth peer name eth0 netns {node_pid}",
            f"link set {link} master {BRIDGE} up",
            f"route replace {pod_range(subnet, index)} via {node_address(subnet, index)}",
        ],
        supervisor_pid,
    )


def set_node_link(supervisor_pid: int, name: str, *, up: bool) -> None:
    """Connect a node to the bridge, or cut it off."""
    _batch([f"link set {link_name(name)} {'up' if up else 'down'}"], supervisor_pid)


def detach(interface: int) -> None:
    """Remove a dead cluster's link to the host, if the kernel has not done so yet.

    Args:
        interface: Its index, which is not given again; its name may be, to another cluster.
    """
    # A connection that waits for a dead node's answer keeps the namespace for a moment.
    with contextlib.suppress(OSError, RuntimeError):
        _batch([f"link delete {socket.if_indextoname(interface)}"])


def answers_dns(server: str, name: str, timeout_s: float = 0.5) -> bool:
    """Whether the DNS server at `server` knows an address of `name`."""
    header = struct.pack(">HHHHHH", 1, 0x0100, 1, 0, 0, 0)
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(timeout_s)
        try:
            client.sendto(header + labels + b"\0" + struct.pack(">HH", 1, 1), (server, 53))
            answer = client.recv(512)
        except OSError:
            return False
    flags, _, answers = struct.unpack(">HHH", answer[2:8])
    return flags & 0xF == 0 and bool(answers)


def _inside(pid: int | None) -> list[str]:
    return [] if pid is None else ["nsenter", f"--target={pid}", "--net", "--"]


def _batch(lines: list[str], pid: int | None = None) -> None:
    _run([*_inside(pid), "ip", "-batch", "-"], "\n".join(lines) + "\n")


def _run(command: list[str], stdin: str | None = None) -> str:
    done = subprocess.run(command, input=stdin, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
