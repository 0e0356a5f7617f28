"""What the chart's policy refuses in the pods of jobs, on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster.cluster import Cluster
from localcluster.kubeapi import ApiError, Object
from tests.conftest import make_namespace
from tests.namespaced import Namespaced
from tests.rendering import rendered
from tests.specs import TWO_SLICES
from tests.waiting import wait_until
from tpujob_operator.core.kinds import TPU_TRAINING_JOB

pytestmark = pytest.mark.control_plane

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
Spec = dict[str, Any]


def _policy(name: str, **values: Any) -> list[Object]:
    """The policy and its binding, for the namespace of this name alone."""
    selector = {"matchLabels": {"kubernetes.io/metadata.name": name}}
    documents = rendered({"templatePolicy": {"namespaceSelector": selector, **values}}, name=name)
    return [item for item in documents if item["metadata"]["name"].endswith("-templates")]


def _applied(cluster: Cluster, name: str, **values: Any) -> Iterator[Namespaced]:
    """A namespace in which the policy holds."""
    make_namespace(cluster, name)
    jobs = Namespaced(cluster.api, name)
    made = _policy(name, **values)
    try:
        for item in made:
            cluster.api.apply(item)
        wait_until(lambda: _refusal(jobs, own({"nodeName": "n"})), "the policy holds")
        yield jobs
    finally:
        for item in made:
            cluster.kubectl("delete", item["kind"], item["metadata"]["name"])
        cluster.api.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="module")
def jobs(control_plane: Cluster) -> Iterator[Namespaced]:
    """A namespace in which the policy holds as it is by default."""
    yield from _applied(control_plane, "policy-default")


@pytest.fixture(scope="module")
def opened(control_plane: Cluster) -> Iterator[Namespaced]:
    """A namespace in which an administrator has opened all but nodeName."""
    everything = {*GROUPS} - {"nodeName"}
    yield from _applied(control_plane, "policy-opened", allow=sorted(everything))


def body(**spec: Any) -> Object:
    """A job of two slices; None removes a part of its spec."""
    return {
        "apiVersion": TPU_TRAINING_JOB.api_version,
        "kind": TPU_TRAINING_JOB.kind,
        "metadata": {"generateName": "j"},
        "spec": {key: value for key, value in {**TWO_SLICES, **spec}.items() if value is not None},
    }


def _refusal(jobs: Namespaced, spec: Spec) -> str:
    """Why the API server refuses a new job; empty: it does not."""
    try:
        path = TPU_TRAINING_JOB.path(jobs.namespace)
        jobs.api.request("POST", f"{path}?dryRun=All", body(**spec))
    except ApiError as error:
        return str(error)
    return ""


def own(pod: Object | None = None, metadata: Object | None = None, **container: Any) -> Spec:
    """A program of one's own, with more in its pods or its container."""
    trainer = {"name": "trainer", "command": ["x"], **container}
    template: Object = {"spec": {"containers": [trainer], **(pod or {})}}
    return {"trainer": None, "template": template | ({"metadata": metadata} if metadata else {})}


def context(**fields: Any) -> Spec:
    """A program of one's own whose container has this security context."""
    return own(securityContext=fields)


def bundled(**fields: Any) -> Spec:
    """The bundled trainer with more."""
    return {"trainer": {"config": {}, **fields}}


_HOST = {"name": "host", "hostPath": {"path": "/"}}
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/trainer"
_PROBE = {"httpGet": {"port": 80, "host": "169.254.169.254"}}
#: By what an administrator opens: jobs, and what their authors are told.
_BAD: dict[str, tuple[str, list[Spec]]] = {
    "hostPath": (
        "hostPath volumes are not allowed here: use a PersistentVolumeClaim, an emptyDir",
        [own({"volumes": [_HOST]}), bundled(volumes=[_HOST])],
    ),
    "privileged": (
        "privileged containers are not allowed here: leave out securityContext.privileged",
        [
            context(privileged=True),
            own({"initContainers": [{"name": "a", "securityContext": {"privileged": True}}]}),
        ],
    ),
    "capabilities": (
        "added capabilities are not allowed here",
        [context(capabilities={"add": ["SYS_ADMIN"]}), context(capabilities={"add": ["ALL"]})],
    ),
    "hostNetwork": ("hostNetwork is not allowed here", [own({"hostNetwork": True})]),
    "hostPID": ("hostPID is not allowed here", [own({"hostPID": True})]),
    "hostIPC": ("hostIPC is not allowed here", [own({"hostIPC": True})]),
    "hostPort": (
        "ports of the host are not allowed here: leave out hostPort",
        [
            own(ports=[{"containerPort": 1}, {"containerPort": 80, "hostPort": 80}]),
            own({"initContainers": [{"name": "a", "ports": [{"hostPort": 80}]}]}),
        ],
    ),
    "hostProbes": (
        "probes and lifecycle hooks may not name a host",
        [
            own(livenessProbe=_PROBE),
            own(startupProbe={"tcpSocket": {"port": 1, "host": "10.0.0.1"}}),
            own(lifecycle={"preStop": _PROBE}),
        ],
    ),
    "hostProcess": (
        "processes of the host are not allowed here",
        [
            context(windowsOptions={"hostProcess": True}),
            own({"securityContext": {"windowsOptions": {"hostProcess": True}}}),
        ],
    ),
    "procMount": ("an unmasked /proc is not allowed here", [context(procMount="Unmasked")]),
    "sysctls": (
        "only those that Kubernetes calls safe are allowed here",
        [
            own({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}),
            bundled(securityContext={"sysctls": [{"name": "kernel.sem", "value": "1"}]}),
        ],
    ),
    "seccompProfile": (
        "pods without seccomp are not allowed here",
        [
            context(seccompProfile={"type": "Unconfined"}),
            bundled(securityContext={"seccompProfile": {"type": "Unconfined"}}),
        ],
    ),
    "appArmorProfile": (
        "pods without AppArmor are not allowed here",
        [
            context(appArmorProfile={"type": "Unconfined"}),
            own(metadata={"annotations": {_APPARMOR: "unconfined"}}),
        ],
    ),
    "seLinuxOptions": (
        "SELinux users, roles and types of one's own are not allowed here",
        [context(seLinuxOptions={"type": "spc_t"}), context(seLinuxOptions={"user": "system_u"})],
    ),
    "nodeName": ("use nodeSelector", [own({"nodeName": "node1"})]),
    "priorityClassName": (
        "priority classes of the system are not allowed here, because they evict the pods",
        [
            {"priorityClassName": "system-node-critical"},
            own({"priorityClassName": "system-cluster-critical"}),
        ],
    ),
    "tolerations": (
        "a toleration without a key tolerates every taint, which is not allowed here",
        [
            own({"tolerations": [{"operator": "Exists"}]}),
            own({"tolerations": [{"key": "", "operator": "Exists", "effect": "NoExecute"}]}),
        ],
    ),
    "serviceAccounts": (
        "this service account is not allowed here: give one of default, trainer",
        [
            own({"serviceAccountName": "admin"}),
            own({"serviceAccount": "admin"}),
            bundled(serviceAccountName="admin"),
        ],
    ),
}
GROUPS = tuple(_BAD)
_ADVICE = "or ask the cluster's administrators, who set templatePolicy in the operator's chart"
_GOOD: dict[str, Spec] = {
    "bundled": {},
    "own": own(),
    "accounts": own({"serviceAccountName": "default"}) | {"priorityClassName": "training"},
    "trainer's account": bundled(serviceAccountName="trainer", securityContext={"runAsUser": 7}),
    "nothing of the host": own({"hostNetwork": False, "hostPID": False}, ports=[{"hostPort": 0}]),
    "null": own({"securityContext": None}, securityContext=None, ports=None, livenessProbe=None),
    "hardened": context(
        privileged=False,
        procMount="Default",
        capabilities={"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
        seccompProfile={"type": "RuntimeDefault"},
        appArmorProfile={"type": "RuntimeDefault"},
        seLinuxOptions={"level": "s0:c1"},
    ),
    "own probes": own(
        livenessProbe={"httpGet": {"port": 80}}, lifecycle={"preStop": {"sleep": {}}}
    ),
    "tolerations": own({"tolerations": [{"key": "dedicated", "operator": "Exists"}]}),
    "volumes": own({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "hostPath": None}]}),
    "annotations": own(metadata={"annotations": {_APPARMOR: "runtime/default"}}),
}


@pytest.mark.parametrize("group", GROUPS)
def test_what_harms_others_is_refused_in_words(jobs: Namespaced, group: str) -> None:
    """The author is told at submission: what, what to do instead, and who could open it."""
    words, specs = _BAD[group]
    for spec in specs:
        refused = _refusal(jobs, spec)
        assert words in refused, spec
        assert _ADVICE in refused


@pytest.mark.parametrize("name", _GOOD)
def test_what_harms_nobody_passes(jobs: Namespaced, name: str) -> None:
    """Pods as people write them pass, as do fields with nothing in them."""
    assert _refusal(jobs, _GOOD[name]) == ""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_pass(jobs: Namespaced, path: Path) -> None:
    """What the project ships is submitted under its own defaults."""
    for document in yaml.safe_load_all(path.read_text()):
        jobs.api.request("POST", f"{TPU_TRAINING_JOB.path(jobs.namespace)}?dryRun=All", document)


@pytest.mark.parametrize("group", sorted({*GROUPS} - {"nodeName"}))
def test_what_is_opened_passes(opened: Namespaced, group: str) -> None:
    """Each name in templatePolicy.allow opens what is refused under it, and nothing else does."""
    for spec in _BAD[group][1]:
        assert _refusal(opened, spec) == ""
    assert "use nodeSelector" in _refusal(opened, own({"nodeName": "node1"}))


def test_a_job_from_before_the_policy_can_be_suspended(
    control_plane: Cluster, namespace: str
) -> None:
    """Only a change of its pods is judged."""
    there = Namespaced(control_plane.api, namespace)
    old = there.submit(body(**own({"hostPID": True})))["metadata"]["name"]
    made = _policy(namespace)
    try:
        for item in made:
            control_plane.api.apply(item)
        wait_until(lambda: _refusal(there, own({"nodeName": "n"})), "the policy holds")
        there.change(old, suspend=True)
        with pytest.raises(ApiError, match=r"host(PID|IPC) is not allowed here"):
            there.change(old, **own({"hostIPC": True, "hostPID": True}))
        with pytest.raises(ApiError, match="is not allowed here"):
            there.change(old, priorityClassName="system-node-critical")
    finally:
        for item in made:
            control_plane.kubectl("delete", item["kind"], item["metadata"]["name"])


@pytest.mark.parametrize("number", [100, 20_000])
def test_a_huge_template_is_judged_or_refused(jobs: Namespaced, number: int) -> None:
    """Nothing passes because there is too much of it: the last of many ports is seen too."""
    ports = [{"containerPort": 1}] * number
    assert "hostPort" in _refusal(jobs, own(ports=[*ports, {"hostPort": 80}]))
    crowd = [{"name": f"c{i}", "command": ["x"], "ports": ports[:2000]} for i in range(31)]
    last = {"name": "trainer", "command": ["x"], "securityContext": {"privileged": True}}
    spec = {"trainer": None, "template": {"spec": {"containers": [*crowd, last]}}}
    assert _refusal(jobs, spec)


def test_the_api_server_finds_nothing_wrong_with_the_policy(
    control_plane: Cluster, jobs: Namespaced
) -> None:
    """Its type checker, which knows the CRD, has no warnings."""
    root = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    def checked() -> Object | None:
        status = control_plane.api.get(f"{root}/{jobs.namespace}-operator-templates")["status"]
        found: Object | None = status.get("typeChecking")
        return status if found is not None else None

    assert "expressionWarnings" not in wait_until(checked, "the policy is checked")["typeChecking"]
