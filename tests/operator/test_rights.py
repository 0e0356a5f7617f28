"""The rights that the chart gives are those that the operator uses, by an audit log."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from localcluster.cluster import Cluster
from tests.accounts import kubeconfig_of
from tests.conftest import make_namespace, start_control_plane
from tests.faultproxy.faults import LoseAnswer, Match
from tests.faultproxy.proxy import FaultProxy
from tests.operator.nodes import kubelets, make_node, renew_lease, tpu_labels
from tests.operator.rig import NODE, Jobs, OperatorProcess, running
from tests.rendering import rendered
from tests.waiting import wait_until
from tpujob_operator.core.kinds import JOB, JOB_SET, TPU_TRAINING_JOB
from tpujob_operator.core.manifests.names import ENDED_ANNOTATION

pytestmark = pytest.mark.control_plane

_NAMESPACE = "rights"
_SILENT = "silent"
_ACCOUNT = f"system:serviceaccount:{_NAMESPACE}:{_NAMESPACE}-operator"
_KINDS = (
    "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding",
    "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
)  # fmt: skip


class Right(NamedTuple):
    """One verb on one kind of object; ``resource`` may have a subresource."""

    verb: str
    group: str
    resource: str


#: Writes whose first answer is lost, so that the operator has to read back what it has done.
_LOST = (
    Match("patch", "tputrainingjobs", subresource="status"),
    Match("create", "services"),
)


@pytest.fixture(scope="module")
def audited() -> Iterator[Cluster]:
    """A control plane that records who asks for what; one node lives, and one fell silent."""
    cluster = start_control_plane(f"rights-{os.getpid()}", audit=True)
    try:
        make_namespace(cluster, _NAMESPACE)
        make_node(cluster, NODE)
        make_node(cluster, _SILENT, ready="Unknown", labels=tpu_labels(_SILENT))
        renew_lease(cluster, _SILENT)
        with kubelets(cluster, NODE):
            yield cluster
    finally:
        cluster.down()


def _release(**values: Any) -> list[dict[str, Any]]:
    """Account, roles, bindings and policies as the chart makes them, for one namespace."""
    values = {"watchNamespaces": [_NAMESPACE], **values}
    documents = rendered(values, name=_NAMESPACE, namespace=_NAMESPACE)
    return [item for item in documents if item["kind"] in _KINDS]


def _granted(release: Iterable[dict[str, Any]]) -> set[Right]:
    """What the operator's own roles say; those for users have other names."""
    roles = [item for item in release if item["kind"] in ("Role", "ClusterRole")]
    return {
        Right(verb, group, resource)
        for role in roles
        if not role["metadata"]["name"].endswith(("-edit", "-view"))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _used(cluster: Cluster) -> dict[Right, set[int]]:
    """What the account has asked for, and the answers."""
    used: dict[Right, set[int]] = {}
    for line in cluster.audit_log.read_text().splitlines():
        event = json.loads(line)
        about = event.get("objectRef", {})
        if event["user"]["username"] != _ACCOUNT or "resource" not in about:
            continue
        parts = (about["resource"], about.get("subresource"))
        resource = "/".join(part for part in parts if part)
        code = event["responseStatus"]["code"]
        # Server-side apply that makes an object needs the right to create it, too.
        for verb in {event["verb"], *(["create"] if code == HTTPStatus.CREATED else [])}:
            right = Right(verb, about.get("apiGroup", ""), resource)
            used.setdefault(right, set()).add(code)
    return used


@contextlib.contextmanager
def _operator(cluster: Cluster, folder: Path, **settings: str) -> Iterator[OperatorProcess]:
    """The operator with the chart's account, and nothing else."""
    kubeconfig = kubeconfig_of(cluster, _NAMESPACE, f"{_NAMESPACE}-operator", folder / "kubeconfig")
    env = {
        "TPUJOB_OPERATOR_KEY": "",  # it makes its own
        "TPUJOB_KEY_SECRET": f"{_NAMESPACE}-operator-key",
        "TPUJOB_NAMESPACE": _NAMESPACE,
        "TPUJOB_LEASE_NAME": f"{_NAMESPACE}-operator",
        "TPUJOB_COORDINATOR_ACCESS": "direct",
        "TPUJOB_NODE_LOSS_S": "1",
        **settings,
    }
    with FaultProxy(kubeconfig, folder) as proxy:
        for match in _LOST:
            proxy.on(match, LoseAnswer())
        env["KUBECONFIG"] = str(proxy.kubeconfig)
        with running(cluster, folder, _NAMESPACE, env=env) as operator:
            yield operator


def _live(jobs: Jobs) -> None:
    """Lives of jobs in which the operator does all that it can do."""
    _refused_pods(jobs)
    _names_of_others(jobs)
    jobs.create("checked", preflight="Compile")
    jobs.wait(JOB, "checked-preflight")
    jobs.create("waits", queue="q")
    jobs.wait(JOB_SET, "waits-1")
    jobs.create("changed")
    jobs.wait(JOB_SET, "changed-1")
    jobs.change("changed", slices=1)
    jobs.wait(JOB_SET, "changed-2")
    jobs.change("changed", activeDeadlineSeconds=1)
    wait_until(lambda: _end_mark(jobs, "changed"), "mark of the end")
    jobs.create("j", ttlSecondsAfterFinished=0)
    _lost_pod(jobs)
    _dead_node(jobs)
    jobs.change("j", suspend=True)
    jobs.wait_condition("j", "Suspended")
    jobs.end_pods("j")
    jobs.change("j", suspend=False)
    for pod in jobs.run_pods("j", 3):
        if "coordinator" in pod["metadata"]["name"]:
            jobs.set_pod(pod["metadata"]["name"], {"phase": "Succeeded"})
    jobs.wait_gone(TPU_TRAINING_JOB, "j")


def _end_mark(jobs: Jobs, name: str) -> str:
    meta = (jobs.find(TPU_TRAINING_JOB, name) or {})["metadata"]
    return str(meta.get("annotations", {}).get(ENDED_ANNOTATION, ""))


def _refused_pods(jobs: Jobs) -> None:
    trainer = {"config": {"steps": 1}, "serviceAccountName": "trainer"}  # there is none
    jobs.create("refused", trainer=trainer)
    jobs.wait_condition("refused", "Stalled", "PodsRefused")
    jobs.delete(TPU_TRAINING_JOB, "refused")
    jobs.wait_gone(TPU_TRAINING_JOB, "refused")


def _names_of_others(jobs: Jobs) -> None:
    """Objects of somebody else that have the names of a job's JobSet and preflight."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}
    job = {"suspend": True, "template": {"spec": pod}}
    replicated = [{"name": "r", "template": {"spec": job}}]
    for kind, name, spec in (
        (JOB, "theirs-preflight", job),
        (JOB_SET, "others-1", {"suspend": True, "replicatedJobs": replicated}),
    ):
        head = {"apiVersion": kind.api_version, "kind": kind.kind}
        meta = {"name": name, "namespace": jobs.namespace}
        jobs.api.apply({**head, "metadata": meta, "spec": spec})
    jobs.create("theirs", preflight="Compile")
    jobs.create("others")
    for name in ("theirs", "others"):
        jobs.wait_condition(name, "Stalled", "Refused")


def _lost_pod(jobs: Jobs) -> None:
    pod = next(p for p in jobs.run_pods("j", 3) if "slice-0" in p["metadata"]["name"])
    uid = jobs.wait(JOB, "j-1-slice-0")["metadata"]["uid"]
    jobs.remove_pod(pod["metadata"]["name"])
    jobs.wait_gone(JOB, "j-1-slice-0", uid)


def _dead_node(jobs: Jobs) -> None:
    pod = next(p for p in jobs.wait_pods("j", 3) if not p["spec"].get("nodeName"))
    jobs.evict(jobs.run_pod(pod, _SILENT))
    jobs.wait_event("j", "NodeGone")


def test_rights_are_those_that_are_used(audited: Cluster, tmp_path: Path) -> None:
    """Nothing is forbidden, nothing is granted in vain; the policy on its writes is in force."""
    release = _release()
    for item in release:
        audited.kubectl("apply", "-f", "-", stdin=json.dumps(item))
    jobs = Jobs(audited, _NAMESPACE)
    with _operator(audited, tmp_path) as operator:
        _live(jobs)
        wait_until(lambda: jobs.events("checked"), "events")
        metrics = operator.get("metrics", "/metrics")
        assert operator.stop() == 0
    assert 'code="403"' not in metrics, operator.text
    assert "orbidden" not in operator.text
    used, granted = _used(audited), _granted(release)
    forbidden = [right for right, codes in used.items() if HTTPStatus.FORBIDDEN in codes]
    assert (forbidden, sorted({*used} - granted)) == ([], []), "used, and not granted"
    assert sorted(granted - {*used}) == [], "granted, and not used"
