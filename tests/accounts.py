"""Service accounts: users of a cluster with the rights that a test gives them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from kubernetes import config

from localcluster.cluster import Cluster
from tests.e2e.access import Access


def kubeconfig_of(cluster: Cluster, namespace: str, account: str, path: Path) -> Path:
    """A kubeconfig of a service account."""
    url = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = cluster.api.request("POST", url, body)["status"]["token"]
    admin = yaml.safe_load(cluster.kubeconfig.read_text())
    admin["users"] = [{"name": admin["users"][0]["name"], "user": {"token": token}}]
    path.write_text(json.dumps(admin))
    return path


def api_of(cluster: Cluster, namespace: str, account: str, folder: Path) -> Access:
    """The API as a service account may use it; the account is made if it is not there."""
    manifest = {"apiVersion": "v1", "kind": "ServiceAccount"}
    cluster.api.apply(manifest | {"metadata": {"name": account, "namespace": namespace}})
    kubeconfig = kubeconfig_of(cluster, namespace, account, folder / f"{account}.kubeconfig")
    load: Any = config.new_client_from_config
    return Access(load(config_file=str(kubeconfig)))
