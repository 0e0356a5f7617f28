"""The JobSet controller, run beside the API server as the cluster's other controllers are.

Its CRD and webhooks come from its own source tree; the webhooks' Service becomes a URL
on loopback, and they get the object selector that JobSet's chart gives them.
"""

import base64
import json
from pathlib import Path
from typing import Any

import yaml

from localcluster import binaries
from localcluster.controlplane import Daemon
from localcluster.kubeapi import Api, Object, is_listening, is_taken, wait_for
from localcluster.layout import Endpoints, Layout

_ESTABLISH_S = 120.0
_SERVE_S = 240.0
# A pod, because the API server makes everybody wait who creates a JobSet in the first
# 2 s after its CRD. The label sends it through both of the controller's pod webhooks.
_PROBE: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "probe", "labels": {"jobset.sigs.k8s.io/jobset-name": "probe"}},
    "spec": {"containers": [{"name": "probe", "image": "probe"}]},
}


def manifests(endpoints: Endpoints, ca: bytes) -> tuple[list[Object], list[Object]]:
    """The CRDs and the webhook configurations, the latter pointing at our controller."""
    things = manifests_of("jobset", f"https://{endpoints.host}:{endpoints.jobset}", ca)
    crds = [thing for thing in things if thing["kind"] == "CustomResourceDefinition"]
    return crds, [thing for thing in things if thing not in crds]


def manifests_of(project: str, url: str, ca: bytes) -> list[Object]:
    """All objects of a controller's source tree, its webhooks pointing at `url`."""
    things: list[Object] = [
        thing
        for path in binaries.assets(project)
        for thing in yaml.load_all(path.read_text(encoding="utf-8"), _Loader)
        if thing
    ]
    for thing in things:
        for webhook in thing.get("webhooks", ()):
            point_at(webhook, url, ca)
        if "webhooks" in thing:
            thing["metadata"]["name"] = f"{project}-{thing['metadata']['name']}"
    return things


def point_at(webhook: dict[str, Any], url: str, ca: bytes) -> None:
    """Turn a webhook that calls a Service into one that calls `url`."""
    path = webhook["clientConfig"].pop("service")["path"]
    bundle = base64.b64encode(ca).decode()
    webhook["clientConfig"] = {"url": url + path, "caBundle": bundle}
    if any("pods" in rule["resources"] for rule in webhook["rules"]):
        exists = {"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}
        webhook["objectSelector"] = {"matchExpressions": [exists]}


def install_crds(api: Api, crds: list[Object]) -> None:
    """Apply the CRDs and wait until they are served.

    A controller started earlier would sleep 10 s before it looks again.
    """
    for crd in crds:
        api.apply(crd)
    names = [crd["metadata"]["name"] for crd in crds]
    wait_for(
        f"the CRDs {', '.join(names)} to be established",
        lambda: all(_is_established(api, name) for name in names),
        _ESTABLISH_S,
    )


def _is_established(api: Api, name: str) -> bool:
    crd = api.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
    # A CRD a few milliseconds old says `conditions: null`.
    conditions = crd.get("status", {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def daemon(binary: Path, layout: Layout, endpoints: Endpoints) -> Daemon:
    """The controller's process."""
    configuration = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {
            "host": endpoints.host,
            "port": endpoints.jobset,
            "certDir": str(layout.pki / "jobset"),
        },
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": "0"},
    }
    path = layout.root / "jobset.json"
    path.write_text(json.dumps(configuration), encoding="utf-8")
    kubeconfig = layout.kubeconfig_of("extension")
    return Daemon("jobset", [str(binary), f"--config={path}", f"--kubeconfig={kubeconfig}"])


def wait_until_serving(api: Api, endpoints: Endpoints) -> None:
    """Return once pods of JobSets pass the webhooks: until then every write of one fails."""
    # The port first: the API server repeats a refused call with pauses that add up to 2 s.
    wait_for(
        "JobSet's webhooks to listen",
        lambda: is_listening(endpoints.host, endpoints.jobset),
        _SERVE_S,
        0.02,
    )
    wait_for("JobSet's webhooks to answer", lambda: _accepts_probe(api), _SERVE_S)


def _accepts_probe(api: Api) -> bool:
    def probe() -> None:
        api.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", _PROBE)

    # A service account that the controller-manager has not made yet is forbidden.
    return is_taken(probe, 403)


_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
