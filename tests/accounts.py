"""Service accounts: users of a cluster with the rights that a test gives them."""

from __future__ import annotations

from pathlib import Path

import yaml

from localcluster.cluster import Cluster


def kubeconfig_of(cluster: Cluster, namespace: str, account: str, path: Path) -> Path:
    """A kubeconfig of a service account."""
    url = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = cluster.api.request("POST", url, body)["status"]["token"]
    admin = yaml.safe_load(cluster.kubeconfig.read_text())
    admin["users"] = [{"name": admin["users"][0]["name"], "user": {"token": token}}]
    path.write_text(yaml.safe_dump(admin))
    return path
