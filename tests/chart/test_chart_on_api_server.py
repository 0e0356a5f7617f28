"""The chart on a real API server: installs, upgrades, makes no key, and grants enough."""

from __future__ import annotations

import base64
import functools
import json
import ssl
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from helm_python import Config

from localcluster.cluster import Cluster
from localcluster.kubeapi import ApiError
from tests.accounts import kubeconfig_of
from tests.waiting import PATIENCE_S, wait_until
from tpujob_operator.core.kinds import LEASE, TPU_TRAINING_JOB

pytestmark = pytest.mark.control_plane


def _values(release: str) -> dict[str, Any]:
    # The CRD belongs to the session's control plane, other namespaces to other tests; roles are
    # named after the release.
    policy = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": release}}}
    return {
        "crds": {"enabled": False},
        "podLabels": {"test": release},
        "templatePolicy": policy,
    }


def test_chart_leaves_the_key_alone(
    control_plane: Cluster, namespace: str, helm: Config, chart_path: Path
) -> None:
    """Installing, upgrading and uninstalling neither makes the operator's key nor removes it."""
    release = namespace
    path = f"/api/v1/namespaces/{namespace}/secrets"
    helm.install(chart_path, release, _values(release), namespace=namespace)
    names = [item["metadata"]["name"] for item in control_plane.api.get(path)["items"]]
    assert f"{release}-operator-key" not in names
    key = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{release}-operator-key", "namespace": namespace},
        "data": {"key": "bWFkZSBieSB0aGUgb3BlcmF0b3I="},
    }
    made = control_plane.api.request("POST", path, key)
    helm.upgrade(chart_path, release, {**_values(release), "workers": 3}, namespace=namespace)
    deployment = f"/apis/apps/v1/namespaces/{namespace}/deployments/{release}-operator"
    pod = control_plane.api.get(deployment)["spec"]["template"]["spec"]
    given = {item["name"]: item.get("value") for item in pod["containers"][0]["env"]}
    assert given["TPUJOB_WORKERS"] == "3"
    assert given["TPUJOB_KEY_SECRET"] == f"{release}-operator-key"
    helm.uninstall(release)
    assert control_plane.api.get(f"{path}/{release}-operator-key") == made


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

    def may(verb: str, group: str, resource: str, where: str = namespace, name: str = "") -> bool:
        kind, _, sub = resource.partition("/")
        asked = {"verb": verb, "group": group, "resource": kind, "subresource": sub, "name": name}
        return _may(control_plane, user, where, **asked)

    jobs = "tputrainingjobs"
    assert may("watch", "tpujob.dev", jobs)
    assert may("patch", "tpujob.dev", f"{jobs}/status")
    assert may("create", "jobset.x-k8s.io", "jobsets")
    assert may("create", "", "secrets")
    assert not may("patch", "", "secrets")
    assert not may("patch", "", "services")
    assert may("get", "", "secrets", name=f"{namespace}-operator-key")
    assert may("delete", "batch", "jobs")
    assert may("create", "", "events")
    assert not may("watch", "tpujob.dev", jobs, "default")
    assert not may("get", "", "secrets")
    assert not may("create", "", "pods/exec")
    assert may("patch", "tpujob.dev", jobs)  # the spec excepted, see the operator's policy
    assert not may("update", "tpujob.dev", jobs)


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


def _is_judged_by(uid: str, kubeconfig: Path, path: str) -> bool:
    """Whether this FlowSchema is the one by which the API server serves a request."""
    given = json.loads(kubeconfig.read_text())
    cluster, user = given["clusters"][0]["cluster"], given["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    headers = {"Authorization": f"Bearer {user['token']}"}
    request = urllib.request.Request(f"{cluster['server']}{path}", headers=headers)
    tls = ssl.create_default_context(cadata=authority)
    with urllib.request.urlopen(request, context=tls, timeout=PATIENCE_S) as answer:
        return bool(answer.headers["X-Kubernetes-PF-FlowSchema-UID"] == uid)


def test_the_api_server_serves_the_operator_before_others(
    control_plane: Cluster, namespace: str, helm: Config, chart_path: Path, tmp_path: Path
) -> None:
    """On request: the Lease by a FlowSchema of its own, and all else by another one."""
    values = {
        **_values(namespace),
        "watchNamespaces": [namespace],
        "apiPriority": {"enabled": True},
    }
    helm.install(chart_path, namespace, values, namespace=namespace)
    name, api = f"{namespace}-operator", control_plane.api
    api.request("POST", LEASE.path(namespace), {"metadata": {"name": name}})
    kubeconfig = kubeconfig_of(control_plane, namespace, name, tmp_path / "kubeconfig")
    asked = {f"{name}-lease": LEASE.path(namespace, name), name: TPU_TRAINING_JOB.path(namespace)}
    for schema, path in asked.items():
        made = api.get(f"/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/{schema}")
        expected = made["metadata"]["uid"]
        is_judged = functools.partial(_is_judged_by, expected, kubeconfig, path)
        wait_until(is_judged, f"effect of {schema}")
    helm.uninstall(namespace)  # it concerns the whole cluster
