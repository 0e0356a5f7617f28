"""A tenant who may only create jobs, in one namespace: what they try harms nobody else."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localcluster.cluster import Cluster
from localcluster.kubeapi import Api, ApiError, Object
from tests.accounts import api_of
from tests.namespaced import Namespaced
from tests.operator.rig import MEMORY_BYTES, Jobs, OperatorProcess
from tests.specs import OWN_PROGRAM, TWO_SLICES
from tests.waiting import wait_until
from tpujob_operator.core.kinds import JOB_SET, POD, SECRET, TPU_TRAINING_JOB

pytestmark = pytest.mark.control_plane

_ROLE = "tenant"


@pytest.fixture
def tenant(control_plane: Cluster, jobs: Jobs, tmp_path: Path) -> Namespaced:
    """A namespace that the operator serves, as its tenant sees it."""
    api = api_of(control_plane, jobs.namespace, "tenant", tmp_path)
    for item in _rights(jobs.namespace):
        control_plane.api.apply(item)
    tenant = Namespaced(api, jobs.namespace)
    wait_until(lambda: _may(tenant), "the tenant's rights")
    return tenant


def _rights(namespace: str) -> list[Object]:
    group = "rbac.authorization.k8s.io"
    metadata = {"name": _ROLE, "namespace": namespace}
    verbs = ["create", "get", "list", "watch", "update", "patch", "delete"]
    rule = {"apiGroups": ["tpujob.dev"], "resources": ["tputrainingjobs"], "verbs": verbs}
    account = {"kind": "ServiceAccount", "name": "tenant", "namespace": namespace}
    return [
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": _ROLE},
            "subjects": [account],
        },
    ]


def _may(tenant: Namespaced) -> bool:
    try:
        tenant.all(TPU_TRAINING_JOB)
    except ApiError:
        return False
    return True


@pytest.fixture(autouse=True)
def others(
    request: pytest.FixtureRequest, shared_operator: tuple[OperatorProcess, list[str]]
) -> Iterator[None]:
    """After each test the operator makes another tenant's job, within its memory."""
    yield
    operator, namespaces = shared_operator
    other = Jobs(request.getfixturevalue("control_plane"), namespaces[-1])
    name = f"other-{uuid.uuid4().hex[:6]}"
    other.create(name)
    other.wait(JOB_SET, f"{name}-1")
    other.delete(TPU_TRAINING_JOB, name)
    assert operator.popen.poll() is None, operator.text
    assert operator.peak_memory_bytes < MEMORY_BYTES
    assert "Traceback" not in operator.life, operator.text


def _job(name: str, metadata: Object | None = None, **spec: Any) -> Object:
    return {
        "apiVersion": TPU_TRAINING_JOB.api_version,
        "kind": TPU_TRAINING_JOB.kind,
        "metadata": {"name": name, **(metadata or {})},
        "spec": {key: value for key, value in {**TWO_SLICES, **spec}.items() if value is not None},
    }


def _refused(api: Api, method: str, path: str, body: Object | None = None) -> bool:
    try:
        api.request(method, path, body)
    except ApiError as error:
        return error.status == 403
    return False


def test_a_tenant_has_jobs_and_nothing_else(tenant: Namespaced) -> None:
    """No pods, no Secrets, no JobSets, no status, no other namespace."""
    tenant.submit(_job("j"))
    path = TPU_TRAINING_JOB.path
    assert _refused(tenant.api, "POST", path("default"), _job("j"))
    assert _refused(tenant.api, "PATCH", path(tenant.namespace, "j", "status"), {"status": {}})
    for kind in (SECRET, POD, JOB_SET):
        assert _refused(tenant.api, "GET", kind.path(tenant.namespace))
        assert _refused(tenant.api, "POST", kind.path(tenant.namespace), {})


def test_a_status_of_ones_own_is_dropped(tenant: Namespaced, jobs: Jobs) -> None:
    """Nobody begins with attempts, incidents or goodput that never were."""
    tenant.submit(_job("j") | {"status": {"state": "Succeeded", "attempt": 9999, "ledger": {}}})
    jobs.wait(JOB_SET, "j-1")
    assert jobs.status("j")["attempt"] == 1


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"accelerator": "v5p", "topology": "16x20x28", "slices": 1024}, "16384 hosts"),
        ({"health": {"progressPattern": "(?P<step>(a+)+)" * 40}}, "256"),
        ({"trainer": {"config": {"x": "y" * 3_200_000}}}, "too large"),
    ],
    ids=["hosts", "pattern", "bytes"],
)
def test_what_is_huge_is_refused_at_once(
    tenant: Namespaced, spec: dict[str, Any], words: str
) -> None:
    """The API server says so to the tenant."""
    with pytest.raises(ApiError, match=words):
        tenant.submit(_job("j", **spec))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"slices": 512, "trainer": {"config": {"x": "y" * 700_000}}}, "too much for the cluster"),
        ({"health": {"progressPattern": "(?P<step>a{99999999999})"}}, "not a regular expression"),
        ({"health": {"progressPattern": "(?P<step>" + "(" * 120}}, "not a regular expression"),
    ],
    ids=["bytes", "repetition", "brackets"],
)
def test_what_only_the_operator_sees_is_told(
    tenant: Namespaced, jobs: Jobs, spec: dict[str, Any], words: str
) -> None:
    """A condition of the tenant's job says what to change; nothing is made."""
    tenant.submit(_job("j", **spec))
    assert words in jobs.wait_condition("j", "Failed", "InvalidSpec")
    assert jobs.all(JOB_SET, "j") == []


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"labels": {"a b": "c"}}, "'a b' is no name of a label"),
        ({"labels": {"a": "b" * 64}}, "is no value of a label"),
        ({"annotations": {"a": "b" * 300_000}}, "keep large texts in a ConfigMap"),
    ],
    ids=["label's name", "label's value", "annotation"],
)
def test_what_the_job_controller_would_refuse_is_told(
    tenant: Namespaced, jobs: Jobs, metadata: Object, words: str
) -> None:
    """JobSet would pass it on, and no Job would ever come of it."""
    template = {**OWN_PROGRAM["template"], "metadata": metadata}
    tenant.submit(_job("j", **{**OWN_PROGRAM, "template": template}))
    assert words in jobs.wait_condition("j", "Failed", "InvalidSpec")


@pytest.mark.parametrize("levels", [100, 500, 9_900])
def test_what_is_nested_deeply_stops_no_other(
    control_plane: Cluster, jobs: Jobs, levels: int
) -> None:
    """The API server takes 10,000 levels, Python's parser fewer: the job says so, others run."""
    template = {**OWN_PROGRAM["template"], "metadata": {"nested": "HERE"}}
    body = json.dumps(_job("deep", **{**OWN_PROGRAM, "template": template}))
    nested = '{"a":' * levels + "1" + "}" * levels
    path = TPU_TRAINING_JOB.path(jobs.namespace)
    arguments = ("create", "--raw", path, "-f", "-")
    control_plane.kubectl(*arguments, stdin=body.replace('"HERE"', nested))
    failed = '{.status.conditions[?(@.type=="Failed")].message}'
    where = ("get", TPU_TRAINING_JOB.plural, "deep", "-n", jobs.namespace)

    def message() -> str:
        return control_plane.kubectl(*where, "-o", f"jsonpath={failed}").stdout

    wait_until(lambda: "at most 64 are read" in message(), "the job's answer")
    control_plane.kubectl("delete", *where[1:])


def test_labels_of_a_template_do_not_name_another_job(tenant: Namespaced, jobs: Jobs) -> None:
    """Whatever its author writes, a pod says whose it is."""
    theirs = {"tpujob.dev/job": "victim", "app.kubernetes.io/managed-by": "Helm"}
    template = {**OWN_PROGRAM["template"], "metadata": {"labels": theirs}}
    tenant.submit(_job("j", **{**OWN_PROGRAM, "template": template}))
    pods = jobs.wait_pods("j", 3)
    assert {pod["metadata"]["labels"]["app.kubernetes.io/managed-by"] for pod in pods} == {
        "tpujob-operator"
    }
    assert jobs.all(POD, "victim") == []


def test_a_crowd_of_jobs_that_come_and_go(tenant: Namespaced, jobs: Jobs) -> None:
    """Forty jobs, changed and deleted as fast as one tenant can; the last one is served."""
    for number in range(40):
        tenant.submit(_job(f"j-{number}", suspend=True))
        tenant.change(f"j-{number}", suspend=bool(number % 2), slices=1 + number % 2)
        tenant.delete(TPU_TRAINING_JOB, f"j-{number}")
    tenant.submit(_job("last"))
    jobs.wait(JOB_SET, "last-1")


def test_a_finalizer_of_ones_own_keeps_a_job_and_nothing_else(
    tenant: Namespaced, jobs: Jobs
) -> None:
    """A job that is deleted and does not go gets no pods any more."""
    tenant.submit(_job("j", {"finalizers": ["example.com/never"], "labels": {"a": "b" * 63}}))
    jobs.wait(JOB_SET, "j-1")
    tenant.delete(TPU_TRAINING_JOB, "j")
    wait_until(lambda: jobs.status("j") is not None, "the operator looks")
    tenant.change("j", slices=1)
    assert jobs.find(JOB_SET, "j-2") is None
    tenant.api.merge(TPU_TRAINING_JOB.path(jobs.namespace, "j"), {"metadata": {"finalizers": None}})
    jobs.wait_gone(TPU_TRAINING_JOB, "j")
