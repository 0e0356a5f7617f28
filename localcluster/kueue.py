"""Kueue's controller, run beside the API server as JobSet's is: quota for jobs with a queue."""

import json
import os
import shutil
from pathlib import Path

from localcluster import binaries, jobset
from localcluster.controlplane import Daemon
from localcluster.kubeapi import Api, Object, is_listening, is_taken, wait_for
from localcluster.layout import Endpoints, Layout, free_ports
from localcluster.processes import Processes
from localcluster.progress import Progress

_PROJECT = "kueue"
_VERSION = "v1beta2"
API_VERSION = f"kueue.x-k8s.io/{_VERSION}"
#: Whose writes it sees; it knows many more kinds, and refuses their writes while it is down.
_GROUPS = {"kueue.x-k8s.io", "jobset.x-k8s.io"}
_SERVE_S = 240.0
_PROBE: Object = {
    "apiVersion": API_VERSION,
    "kind": "ResourceFlavor",
    "metadata": {"name": "probe"},
}


def install(
    layout: Layout, processes: Processes, api: Api, endpoints: Endpoints, progress: Progress
) -> None:
    """Run the controller, with its CRDs and its webhooks for JobSets."""
    binary = binaries.ensure({"kueue"}, progress)["kueue"]
    ca = (layout.pki / "ca.crt").read_bytes()
    [port] = free_ports(1)
    things = jobset.manifests_of(_PROJECT, f"https://{endpoints.host}:{port}", ca)
    crds = [_of_one_version(thing) for thing in things if "webhooks" not in thing]
    jobset.install_crds(api, crds)
    processes.start(_daemon(binary, layout, endpoints, port))

    def probe() -> None:
        api.request("POST", f"/apis/{API_VERSION}/resourceflavors?dryRun=All", _PROBE)

    wait_for("Kueue's webhooks to listen", lambda: is_listening(endpoints.host, port), _SERVE_S)
    for hook in (thing for thing in things if "webhooks" in thing):
        hook["webhooks"] = [item for item in hook["webhooks"] if _is_ours(item)]
        api.apply(hook)
    wait_for("Kueue's webhooks to answer", lambda: is_taken(probe), _SERVE_S)


def _of_one_version(crd: Object) -> Object:
    """Without the older version, which would need a webhook for conversions."""
    for version in crd["spec"]["versions"]:
        version["served"] = version["storage"]
    return crd


def _is_ours(webhook: Object) -> bool:
    return all(_GROUPS.issuperset(rule["apiGroups"]) for rule in webhook["rules"])


def _daemon(binary: Path, layout: Layout, endpoints: Endpoints, port: int) -> Daemon:
    folder = layout.root / _PROJECT
    certificates = layout.pki / "jobset"
    # It has no option for these, and does not start without them.
    shutil.copytree(certificates, folder / "etc" / "kueue" / "metrics" / "certs")
    configuration = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": endpoints.host, "port": port, "certDir": str(certificates)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": "0"},
        "integrations": {"frameworks": ["jobset.x-k8s.io/jobset"]},
    }
    path = folder / "configuration.json"
    path.write_text(json.dumps(configuration), encoding="utf-8")
    script = (
        f"mount -t overlay overlay -o lowerdir={folder / 'etc'}:/etc /etc && "
        f"exec {binary} --config={path} --kubeconfig={layout.kubeconfig_of('extension')} "
        "--feature-gates=VisibilityOnDemand=false"
    )
    tools = {name: str(shutil.which(name)) for name in ("unshare", "sh")}
    return Daemon(
        _PROJECT,
        [tools["unshare"], "--mount", tools["sh"], "-c", script],
        {"PATH": os.defpath},
    )
