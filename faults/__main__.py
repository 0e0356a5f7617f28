"""``python -m faults NAME --job JOB``: make a fault in the cluster of the present kubeconfig."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from demo.kube import Kube
from faults import catalogue
from faults.scene import OutOfReachError, Place, Scene
from localcluster.cluster import Cluster


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``python -m faults``."""
    width = max(map(len, catalogue.CATALOGUE))
    names = "\n".join(
        f"  {name:<{width}}  {fault.title}" for name, fault in catalogue.CATALOGUE.items()
    )
    parser = argparse.ArgumentParser(
        "faults",
        description="Make a fault under a running job.",
        epilog=f"faults:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=sorted(catalogue.CATALOGUE), metavar="NAME")
    parser.add_argument("--job", required=True, help="name of the TPUTrainingJob")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--slice", type=int, default=0)
    parser.add_argument("--host", type=int, default=0, help="of the slice")
    parser.add_argument("--heal", action="store_true", help="undo the fault instead")
    parser.add_argument(
        "--cluster", default="", metavar="NAME", help="the local cluster of this name"
    )
    options = parser.parse_args(argv)
    cluster = Cluster(options.cluster) if options.cluster else None
    kubeconfig: Path | None = cluster.kubeconfig if cluster else None
    scene = Scene(Kube(kubeconfig, options.namespace), options.job, cluster)
    try:
        return _act(options.name, scene, Place(options.slice, options.host), heal=options.heal)
    except (OutOfReachError, LookupError) as error:
        print(f"faults: {error}", file=sys.stderr)
        return 1


def _act(name: str, scene: Scene, place: Place, *, heal: bool) -> int:
    fault = catalogue.CATALOGUE[name]
    if not heal:
        made = catalogue.make(name, scene, place)
        print(f"{made.title}: {made.target}")
    elif fault.heal:
        fault.heal(scene, place)
        print(f"undone: {fault.title}")
    else:
        print(f"faults: nothing undoes {name!r}: the job recovers by itself", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
