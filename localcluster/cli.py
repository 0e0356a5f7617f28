"""The command line: `python -m localcluster up|down|status|kubeconfig|image|node|kubectl`."""

import argparse
import os
import sys
from pathlib import Path

from localcluster import binaries, cluster, images, preparation
from localcluster.cluster import Cluster
from localcluster.layout import Spec
from localcluster.progress import say

_DEFAULTS = Spec()


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status is 0 on success, 1 with a message on failure."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options) or 0)
    except (RuntimeError, TimeoutError, ValueError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130


def _fail(message: str) -> int:
    print(f"localcluster: {message}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m localcluster", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_up(commands)
    made = _add(commands, "prepare", _prepare, "install and build what `up` needs, and both images")
    made.add_argument("--control-plane-only", action="store_true", help="nothing for nodes")
    built = _add(commands, "build", _build, "build programs that tests and benchmarks need")
    built.add_argument("programs", nargs="+", metavar="PROGRAM", choices=sorted(binaries.PROGRAMS))
    _add(commands, "down", _down, "end a cluster and remove every trace of it")
    _add(commands, "status", _status, "show processes and nodes")
    _add_image(commands)
    _add_node(commands)
    shown = _add(commands, "kubeconfig", _kubeconfig, "print the kubeconfig's path")
    shown.add_argument("--content", action="store_true", help="print the file itself")
    passed = _add(commands, "kubectl", _kubectl, "run kubectl against the cluster")
    passed.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _add(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: object,
    about: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=about, description=about)
    parser.add_argument(
        "--name", default=_DEFAULTS.name, help="the cluster's name (default: %(default)s)"
    )
    parser.set_defaults(run=run)
    return parser


def _add_image(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    about = "build the project's images, or load one into the nodes"
    image = commands.add_parser("image", help=about, description=about)
    actions = image.add_subparsers(required=True, metavar="ACTION")
    build = actions.add_parser("build", help="build images; prints name, digest and archive")
    images.add_arguments(build)
    build.set_defaults(run=images.build_command)
    loading = _add(actions, "load", _load, "load docker-archives into all running nodes")
    loading.add_argument("archives", nargs="+", type=Path, metavar="ARCHIVE")


def _add_node(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    about = "cut a node's power or network, and give it back"
    node = commands.add_parser("node", help=about, description=about)
    actions = node.add_subparsers(required=True, metavar="ACTION")
    fail = _add(actions, "fail", _fail_node, "cut the power: everything on the node ends at once")
    fail.add_argument("--network", action="store_true", help="cut only the network")
    heal = _add(actions, "heal", _heal_node, "give power and network back")
    for action in (fail, heal):
        action.add_argument("node", metavar="NODE")


def _add_up(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    up = _add(commands, "up", _up, "bring a cluster up, cleaning first what a killed run left")
    up.add_argument("--nodes", type=int, default=_DEFAULTS.nodes, help="real nodes (%(default)s)")
    up.add_argument("--kwok", type=int, default=0, help="simulated nodes (%(default)s)")
    up.add_argument("--control-plane-only", action="store_true", help="no real nodes")
    up.add_argument(
        "--image",
        action="append",
        default=[],
        type=Path,
        metavar="ARCHIVE",
        help="a docker-archive that all nodes shall have; may be given several times",
    )
    up.add_argument("--hosts-per-slice", type=int, default=_DEFAULTS.hosts_per_slice)
    up.add_argument(
        "--accelerator", default=_DEFAULTS.accelerator, help="GKE's label (%(default)s)"
    )
    up.add_argument("--topology", default=_DEFAULTS.topology, help="of a slice (%(default)s)")
    up.add_argument(
        "--taint",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="taint TPU nodes as GKE does",
    )
    up.add_argument(
        "--node-monitor-grace-s",
        type=int,
        default=_DEFAULTS.node_monitor_grace_s,
        help="silence in seconds after which a node is NotReady (%(default)s)",
    )


def _up(options: argparse.Namespace) -> None:
    spec = Spec(
        name=options.name,
        nodes=options.nodes,
        kwok=options.kwok,
        control_plane_only=options.control_plane_only,
        hosts_per_slice=options.hosts_per_slice,
        accelerator=options.accelerator,
        topology=options.topology,
        taint=options.taint,
        node_monitor_grace_s=options.node_monitor_grace_s,
    )
    made = Cluster.up(spec, images=options.image, progress=say)
    say(f"export KUBECONFIG={made.kubeconfig}")


def _prepare(options: argparse.Namespace) -> None:
    if options.control_plane_only:
        preparation.prepare_control_plane(say)
    else:
        preparation.prepare(say)


def _build(options: argparse.Namespace) -> None:
    for path in binaries.ensure(set(options.programs), say).values():
        say(str(path))


def _down(options: argparse.Namespace) -> None:
    was_there = cluster.down(options.name)
    say(f"cluster {options.name} is {'down' if was_there else 'not up'}")


def _status(options: argparse.Namespace) -> int:
    running = Cluster(options.name)
    processes = running.processes()
    for process in processes:
        state = "running" if process["running"] else f"down (exit {process['exit_code']})"
        say(f"{process['name']:28} {state}, {process['restarts']} restarts")
    shown = running.kubectl("get", "nodes", "--output=wide", check=False)
    say((shown.stdout + shown.stderr).rstrip())
    return 0 if all(process["running"] for process in processes) else 1


def _load(options: argparse.Namespace) -> None:
    running = Cluster(options.name)
    for archive in options.archives:
        running.load_image(archive, say)


def _fail_node(options: argparse.Namespace) -> None:
    Cluster(options.name).fail_node(options.node, network=options.network)
    say(f"node {options.node} has lost its {'network' if options.network else 'power'}")


def _heal_node(options: argparse.Namespace) -> None:
    Cluster(options.name).heal_node(options.node)
    say(f"node {options.node} is back")


def _kubeconfig(options: argparse.Namespace) -> None:
    path = Cluster(options.name).kubeconfig
    say(path.read_text(encoding="utf-8") if options.content else str(path))


def _kubectl(options: argparse.Namespace) -> None:
    running = Cluster(options.name)
    binary = str(binaries.ensure({"kubectl"}, say)["kubectl"])
    os.execv(binary, [binary, f"--kubeconfig={running.kubeconfig}", *options.arguments])  # noqa: S606
