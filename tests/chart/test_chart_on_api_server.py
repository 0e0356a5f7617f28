"""The chart on a real API server: installs, upgrades, keeps its key, and grants enough."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from helm_python import Config

from localcluster.cluster import Cluster
from localcluster.kubeapi import ApiError

pytestmark = pytest.mark.control_plane


def _key(cluster: Cluster, namespace: str, release: str) -> str:
    path = f"/api/v1/namespaces/{namespace}/secrets/{release}-operator-key"
    return base64.b64decode(cluster.api.get(path)["data"]["key"]).decode()


def _values(release: str) -> dict[str, Any]:
    # The CRD belongs to the session's control plane, other namespaces to other tests; roles are
    # named after the release.
    policy = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": release}}}
    return {
        "crds": {"enabled": False},
        "podLabels": {"test": release},
        "templatePolicy": policy,
    }


def test_key_survives_upgrades(
    control_plane: Cluster, namespace: str, helm: Config, chart_path: Path
) -> None:
    """Each installation gets a random key, which an upgrade does not change."""
    release = namespace
    helm.install(chart_path, release, _values(release), namespace=namespace)
    first = _key(control_plane, namespace, release)
    assert len(first) >= 32
    helm.upgrade(chart_path, release, {**_values(release), "workers": 3}, namespace=namespace)
    assert _key(control_plane, namespace, release) == first
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{release}-operator"
    pod = control_plane.api.get(path)["spec"]["template"]["spec"]
    assert {"name": "TPUJOB_WORKERS", "value": "3"} in pod["containers"][0]["env"]


def test_crd_comes_with_the_chart(
    control_plane: Cluster, namespace: str, helm: Config, chart_path: Path
) -> None:
    """The chart's CRD is the one in crds/: the API server sees no difference."""
    name = "tputrainingjobs.tpujob.dev"
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
    before = control_plane.api.get(path)
    shown = helm.install(chart_path, namespace, {}, namespace=namespace, dry_run="client")[
        "manifest"
    ]
    crd = shown.split("# Source: tpujob-operator/templates/crds/")[1].split("\n---")[0]
    document = "\n".join(crd.splitlines()[1:])
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=document)
    assert control_plane.api.get(path)["spec"] == before["spec"]


def _may(cluster: Cluster, user: str, namespace: str, **attributes: str) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": user,
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": {"namespace": namespace, **attributes},
        },
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(cluster.api.request("POST", path, review)["status"]["allowed"])


def test_rights_on_the_api_server(
    control_plane: Cluster, namespace: str, helm: Config, chart_path: Path
) -> None:
    """The service account may do what the operator does in watched namespaces, and no more."""
    values = {**_values(namespace), "watchNamespaces": [namespace]}
    helm.install(chart_path, namespace, values, namespace=namespace)
    user = f"system:serviceaccount:{namespace}:{namespace}-operator"

    def may(verb: str, group: str, resource: str, where: str = namespace) -> bool:
        name, _, sub = resource.partition("/")
        asked = {"verb": verb, "group": group, "resource": name, "subresource": sub}
        return _may(control_plane, user, where, **asked)

    jobs = "tputrainingjobs"
    assert may("watch", "tpujob.dev", jobs)
    assert may("patch", "tpujob.dev", f"{jobs}/status")
    assert may("create", "jobset.x-k8s.io", "jobsets")
    assert may("patch", "", "secrets")
    assert may("delete", "batch", "jobs")
    assert may("create", "", "events")
    assert not may("watch", "tpujob.dev", jobs, "default")
    assert not may("get", "", "secrets")
    assert not may("create", "", "pods/exec")
    assert not may("patch", "tpujob.dev", jobs)


def test_users_of_a_namespace_may_have_jobs(
    control_plane: Cluster, namespace: str, helm: Config, chart_path: Path
) -> None:
    """Holders of the standard role edit may create jobs once the chart is installed."""
    helm.install(chart_path, namespace, _values(namespace), namespace=namespace)
    role = f"{namespace}-operator-edit"
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    labels = control_plane.api.get(f"{path}/{role}")["metadata"]["labels"]
    assert labels["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    helm.uninstall(namespace)
    with pytest.raises(ApiError, match="404"):
        control_plane.api.get(f"{path}/{role}")
