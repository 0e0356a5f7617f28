"""What the operator's account may write, whatever its role allows, on a real API server."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from localcluster.cluster import Cluster
from localcluster.kubeapi import Api, ApiError, Object
from tests.accounts import api_of
from tests.conftest import make_namespace
from tests.rendering import rendered
from tests.specs import TWO_SLICES
from tests.waiting import wait_until
from tpujob_operator.core.kinds import JOB, POD, SECRET, SERVICE, TPU_TRAINING_JOB, Kind, kind_of
from tpujob_operator.core.manifests import names

pytestmark = pytest.mark.control_plane

#: Of the release, of its namespace and of the test's objects.
NAME = "operator-policy"
_OURS = {names.MANAGED_BY_LABEL: names.FIELD_MANAGER}


@pytest.fixture(scope="module")
def account(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The operator's account under its policy, with every right that a role can give."""
    make_namespace(control_plane, NAME)
    documents = rendered(name=NAME, namespace=NAME)
    made = [item for item in documents if item["metadata"]["name"] == f"{NAME}-operator-writes"]
    made.append(_everything(f"{NAME}-operator"))
    api = api_of(control_plane, NAME, f"{NAME}-operator", tmp_path_factory.mktemp("account"))
    try:
        for item in made:
            control_plane.api.apply(item)
        wait_until(lambda: "label" in _refusal(api, _secret(labels={})), "the policy holds")
        yield api
    finally:
        for item in made:
            control_plane.kubectl("delete", item["kind"], item["metadata"]["name"])
        control_plane.api.request("DELETE", f"/api/v1/namespaces/{NAME}")


def _everything(account: str) -> Object:
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": account},
        "roleRef": role,
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAME}],
    }


def _thing(version: str, kind: str, labels: dict[str, str] | None = None, **fields: Any) -> Object:
    labels = _OURS if labels is None else labels
    metadata = {"name": "thing", "namespace": NAME, "labels": labels}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}


def _secret(kind: str = "Opaque", **fields: Any) -> Object:
    return _thing("v1", "Secret", type=kind, **fields)


def _service(**spec: Any) -> Object:
    return _thing("v1", "Service", spec={"ports": [{"port": 80}], "selector": {"a": "b"}, **spec})


def _elsewhere(thing: Object, namespace: str) -> Object:
    moved = copy.deepcopy(thing)
    moved["metadata"]["namespace"] = namespace
    return moved


def _create(api: Api, thing: Object) -> None:
    path = kind_of(thing).path(thing["metadata"]["namespace"])
    api.request("POST", f"{path}?dryRun=All", thing)


def _refusal(api: Api, thing: Object) -> str:
    """Why an account may not create an object; empty: it may."""
    try:
        _create(api, thing)
    except ApiError as error:
        return str(error)
    return ""


_TOKEN = {"annotations": {"kubernetes.io/service-account.name": "admin"}}
_TOKEN_SECRET = _secret("kubernetes.io/service-account-token")
_TOKEN_SECRET["metadata"] |= _TOKEN


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (_secret(labels={}), "only what carries the label"),
        (_secret(labels={names.MANAGED_BY_LABEL: "Helm"}), "only what carries the label"),
        (_TOKEN_SECRET, "only Secrets of type Opaque, which give no rights"),
        (_secret("kubernetes.io/tls", data={"tls.crt": "", "tls.key": ""}), "only Secrets of type"),
        (_elsewhere(_secret(), "kube-system"), "in the namespaces of Kubernetes itself"),
        (_service(type="LoadBalancer"), "only Services within the cluster"),
        (_service(externalIPs=["198.51.100.1"]), "without external addresses"),
        (_service(type="ExternalName", externalName="example.com"), "only Services within"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_gives_rights_is_refused(account: Api, thing: Object, words: str) -> None:
    """An account that is taken over makes no tokens of others and no doors from outside."""
    assert words in _refusal(account, thing)


@pytest.mark.parametrize("thing", [_secret(), _service(), _service(clusterIP="None")])
def test_what_jobs_need_passes(account: Api, thing: Object) -> None:
    """Secrets and Services as the operator makes them."""
    assert _refusal(account, thing) == ""


@pytest.mark.parametrize("kind", [SECRET, SERVICE])
def test_what_others_made_is_neither_changed_nor_shown(
    control_plane: Cluster, account: Api, kind: Kind
) -> None:
    """Not even by a patch of nothing, whose answer would hold the whole object."""
    thing = {SECRET: _secret(labels={}), SERVICE: _service()}[kind]
    thing["metadata"] |= {"name": "precious", "labels": {}}
    control_plane.api.apply(thing)
    path = kind.path(NAME, "precious")
    for patch in ({}, {"metadata": {"labels": _OURS}}):
        with pytest.raises(ApiError, match="only what carries the label"):
            account.merge(path, patch)


@pytest.mark.parametrize("kind", [POD, JOB])
def test_what_others_run_is_not_deleted(control_plane: Cluster, account: Api, kind: Kind) -> None:
    """Only pods and Jobs of training jobs are."""
    container = {"containers": [{"name": "a", "image": "a"}], "restartPolicy": "Never"}
    spec: Object = container if kind is POD else {"template": {"spec": container}}
    for name, labels in {"theirs": {}, "ours": _OURS}.items():
        thing = _thing(kind.api_version, kind.kind, labels, spec=spec)
        thing["metadata"]["name"] = name
        control_plane.api.apply(thing)
    with pytest.raises(ApiError, match="only what carries the label"):
        account.request("DELETE", kind.path(NAME, "theirs"))
    account.request("DELETE", kind.path(NAME, "ours"))


def test_the_spec_of_a_job_is_not_changed(control_plane: Cluster, account: Api) -> None:
    """The mark of its end is all that the operator writes on a job itself."""
    job = {
        "apiVersion": TPU_TRAINING_JOB.api_version,
        "kind": TPU_TRAINING_JOB.kind,
        "metadata": {"name": "j", "namespace": NAME},
        "spec": TWO_SLICES,
    }
    control_plane.api.request("POST", TPU_TRAINING_JOB.path(NAME), job)
    path = TPU_TRAINING_JOB.path(NAME, "j")
    account.merge(path, {"metadata": {"annotations": {"tpujob.dev/ended": "Failed u"}}})
    with pytest.raises(ApiError, match="may not change the spec of a job"):
        account.merge(path, {"spec": {"slices": 1}})
    control_plane.api.request("DELETE", path)


def test_others_are_not_concerned(control_plane: Cluster, account: Api) -> None:
    """The policy is about one account."""
    assert "label" in _refusal(account, _secret(labels={}))
    _create(control_plane.api, _secret(labels={}))
