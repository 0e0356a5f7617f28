"""Where the demo can run: the local cluster, kind, or the cluster of the present kubeconfig."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localcluster import host, images, preparation
from localcluster.cluster import Cluster
from localcluster.layout import Spec

NAME = "demo"
_SHARED = "/mnt/shared"
Progress = Callable[[str], None]


class UnfitError(RuntimeError):
    """The demo cannot run there; the message names what would work."""


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A cluster that is ready for the demo."""

    kubeconfig: Path | None
    operator_image: str
    trainer_image: str
    image_key: str  # changes whenever the trainer's image does
    volume: dict[str, Any]  # source of a volume that all workers share
    down: Callable[[], None]

    @property
    def chart_values(self) -> dict[str, Any]:
        """Values of the operator's chart for this cluster."""
        return {
            "image": {"reference": self.operator_image, "pullPolicy": "IfNotPresent"},
            "trainer": {"image": self.trainer_image},
            # The folder that the hosts share is one of the nodes where there is no claim for it.
            "templatePolicy": {"allow": ["hostPath"] if "hostPath" in self.volume else []},
        }


def choose(kind_of_cluster: str) -> str:
    """Resolve ``auto``: kind if a Docker engine answers and kind is there, else local."""
    if kind_of_cluster != "auto":
        return kind_of_cluster
    return "kind" if shutil.which("kind") and images.docker_answers() else "local"


def prepare(kind_of_cluster: str, progress: Progress, *, tied: bool) -> Target:
    """Bring up the cluster and its images.

    Args:
        kind_of_cluster: auto, local, kind or current.
        progress: Takes a line now and then.
        tied: A local cluster ends with this process, however it ends.

    Raises:
        UnfitError: it cannot be had on this host.
    """
    makers = {"local": _local, "kind": _kind, "current": _current}
    return makers[choose(kind_of_cluster)](progress, tied=tied)


def _local(progress: Progress, *, tied: bool) -> Target:
    try:
        archives = preparation.prepare(progress)
    except host.HostUnfitError as error:
        raise UnfitError(str(error)) from error
    cluster = Cluster.up(
        Spec(name=NAME, nodes=4),
        images=[archive.path for archive in archives.values()],
        tied=tied,
        progress=progress,
    )
    return target(cluster.kubeconfig, archives, cluster.down)


def target(
    kubeconfig: Path, archives: dict[str, images.Archive], down: Callable[[], None]
) -> Target:
    """A cluster that has these images, whose nodes share a folder."""
    return Target(
        kubeconfig=kubeconfig,
        operator_image=archives["operator"].reference,
        trainer_image=archives["trainer"].reference,
        image_key=archives["trainer"].digest,
        volume={"hostPath": {"path": f"{_SHARED}/{NAME}", "type": "DirectoryOrCreate"}},
        down=down,
    )


def _current(_progress: Progress, *, tied: bool) -> Target:  # noqa: ARG001 - one signature
    operator, trainer = os.environ.get("OPERATOR_IMAGE"), os.environ.get("TRAINER_IMAGE")
    claim, path = os.environ.get("SHARED_CLAIM"), os.environ.get("SHARED_HOST_PATH")
    if not (operator and trainer and (claim or path)):
        raise UnfitError(
            "CLUSTER=current needs OPERATOR_IMAGE and TRAINER_IMAGE (built from the Dockerfile and "
            "pullable by the cluster) and SHARED_CLAIM (a ReadWriteMany claim in namespace demo) "
            "or SHARED_HOST_PATH (a folder that all nodes share); CLUSTER=local needs none of them"
        )
    volume = (
        {"persistentVolumeClaim": {"claimName": claim}}
        if claim
        else {"hostPath": {"path": f"{path}/{NAME}", "type": "DirectoryOrCreate"}}
    )
    return Target(None, operator, trainer, trainer, volume, lambda: None)


_KIND_CONFIG = """\
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes:
- role: control-plane
"""
_KIND_WORKER = """\
- role: worker
  labels:
    cloud.google.com/gke-tpu-accelerator: tpu-v5-lite-podslice
    cloud.google.com/gke-tpu-topology: 2x4
    cloud.google.com/gke-nodepool: slice-{pool}
  extraMounts: [{{hostPath: {shared}, containerPath: {inside}}}]
"""
_JOBSET = "https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml"


def _kind(progress: Progress, *, tied: bool) -> Target:  # noqa: ARG001 - one signature
    if not shutil.which("kind") or not shutil.which("kubectl") or not images.docker_answers():
        raise UnfitError(
            "CLUSTER=kind needs kind, kubectl and a Docker engine that answers; "
            "CLUSTER=local needs none of them"
        )
    folder = Path("build/demo/kind").resolve()
    shared, kubeconfig = folder / "shared", folder / "kubeconfig"
    shared.mkdir(parents=True, exist_ok=True)
    shared.chmod(0o1777)
    workers = [_KIND_WORKER.format(pool=i // 2, shared=shared, inside=_SHARED) for i in range(4)]
    archives = preparation.build_images(progress)
    progress("kind: making a cluster of five nodes")
    _run("kind", "delete", "cluster", "--name", NAME)
    create = ["kind", "create", "cluster", "--name", NAME, "--kubeconfig", str(kubeconfig)]
    _run(*create, "--wait", "120s", "--config", "-", stdin=_KIND_CONFIG + "".join(workers))
    for archive in archives.values():
        progress(f"kind: loading {archive.reference}")
        _run("kind", "load", "image-archive", str(archive.path), "--name", NAME)
    kubectl = ["kubectl", "--kubeconfig", str(kubeconfig)]
    _run(*kubectl, "apply", "--server-side", "-f", _JOBSET)
    wait = ["wait", "--for=condition=Available", "--timeout=180s"]
    _run(*kubectl, "-n", "jobset-system", *wait, "deployment/jobset-controller-manager")
    nodes = _run(*kubectl, "get", "nodes", "-l", "cloud.google.com/gke-tpu-topology", "-o", "name")
    patch = '{"status":{"capacity":{"google.com/tpu":"4"},"allocatable":{"google.com/tpu":"4"}}}'
    for node in nodes.split():
        _run(*kubectl, "patch", node, "--subresource=status", "--type=merge", "-p", patch)
    return target(
        kubeconfig, archives, lambda: _discard(_run("kind", "delete", "cluster", "--name", NAME))
    )


def _discard(_: object) -> None:
    return None


def _run(*command: str, stdin: str | None = None) -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnfitError(f"{' '.join(command)}: {done.stderr.strip()[-800:]}")
    return done.stdout
