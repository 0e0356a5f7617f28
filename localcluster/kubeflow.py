"""Kubeflow Trainer's controller, run beside the API server as JobSet's is: a peer to measure."""

import json
import shutil
from pathlib import Path

from localcluster import binaries, jobset
from localcluster.controlplane import Daemon
from localcluster.kubeapi import Api, is_listening, is_taken, wait_for
from localcluster.layout import Endpoints, Layout
from localcluster.processes import Processes
from localcluster.progress import Progress

_PROJECT = "kubeflow-trainer"
#: Beside JobSet's 9443, on the cluster's own address.
_PORT = 9444
_SERVE_S = 240.0
RUNTIME = "jax-distributed"


def install(
    layout: Layout, processes: Processes, api: Api, endpoints: Endpoints, progress: Progress
) -> None:
    """Run the controller, with its CRDs, its webhooks and its runtime for JAX."""
    binary = binaries.ensure({"trainer"}, progress)["trainer"]
    ca = (layout.pki / "ca.crt").read_bytes()
    things = jobset.manifests_of(_PROJECT, f"https://{endpoints.host}:{_PORT}", ca)
    crds = [thing for thing in things if thing["kind"] == "CustomResourceDefinition"]
    hooks = [thing for thing in things if "webhooks" in thing]
    jobset.install_crds(api, crds)
    processes.start(_daemon(binary, layout, endpoints))
    wait_for(
        "Kubeflow Trainer's webhooks to listen",
        lambda: is_listening(endpoints.host, _PORT),
        _SERVE_S,
    )
    for hook in hooks:
        api.apply(hook)
    [runtime] = [thing for thing in things if thing not in crds and thing not in hooks]
    wait_for(
        "Kubeflow Trainer to take its runtime",
        lambda: is_taken(lambda: api.apply(runtime)),
        _SERVE_S,
    )


def _daemon(binary: Path, layout: Layout, endpoints: Endpoints) -> Daemon:
    folder = layout.root / _PROJECT
    # Its configuration has no place for certificates: controller-runtime looks here.
    certificates = folder / "k8s-webhook-server" / "serving-certs"
    shutil.copytree(layout.pki / "jobset", certificates)
    configuration = {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "certManagement": {"enable": False},
        "webhook": {"host": endpoints.host, "port": _PORT},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": "0"},
    }
    path = folder / "configuration.json"
    path.write_text(json.dumps(configuration), encoding="utf-8")
    arguments = [f"--config={path}", f"--kubeconfig={layout.kubeconfig_of('extension')}"]
    return Daemon(_PROJECT, [str(binary), *arguments], {"TMPDIR": str(folder)})
