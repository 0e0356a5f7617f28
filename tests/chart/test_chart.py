"""The chart renders what was reviewed, takes no unknown value, and grants no more than needed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from helm_python import Chart, HelmError, HelmValuesError, lint

from monitoring.reference import of_coordinator
from tests.chart.conftest import Objects, Render
from tests.golden import assert_reviewed
from tests.rendering import rendered
from tpujob_agent.protocol import HTTP_PORT, METRICS_PATH
from tpujob_operator.core.manifests import names
from tpujob_operator.settings import Settings, variable_of
from tpujob_tpu.provisioning import Provisioning

GOLDEN = Path(__file__).parent / "golden"
KUBERNETES = "1.36.0"
CRD = "CustomResourceDefinition/tputrainingjobs.tpujob.dev"

_SOME: dict[str, Any] = {
    "image": {"reference": "mine/operator:1", "pullPolicy": "Always", "pullSecrets": ["s"]},
    "trainer": {"image": "mine/trainer:1"},
    "watchNamespaces": ["a", "b"],
    "replicas": 3,
    "apiRequests": {"perSecond": 50, "burst": 100},
    "apiPriority": {"enabled": True},
    "logFormat": "text",
    "nodeLossSeconds": 30,
    "taintSuspects": True,
    "templatePolicy": {"enabled": True, "allow": ["hostNetwork"], "serviceAccounts": ["trainer"]},
    "operatorKey": {"existingSecret": "mine"},
    "serviceAccount": {"name": "sa", "annotations": {"x": "y"}},
    "podAnnotations": {"x": "y"},
    "podLabels": {"x": "y"},
    "nodeSelector": {"x": "y"},
    "tolerations": [{"key": "x", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
    "crds": {"keep": False},
    "networkPolicy": {
        "namespaces": ["c"],
        "metricsFrom": [],
        "agentsFrom": [{"ipBlock": {"cidr": "10.0.0.0/16"}}],
    },
}


def _container(objects: Objects) -> dict[str, Any]:
    deployment = objects["Deployment/tpujob-operator"]
    container: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0]
    return container


def test_lint(chart_path: Path) -> None:
    """Helm's strict lint finds nothing to complain about."""
    for values in ({}, _SOME):
        report = lint(chart_path, values, strict=True, namespace="x")
        assert report["errors"] == []
        assert [m for m in report["messages"] if m["severity"] > 1] == []


def test_golden(render: Render) -> None:
    """The default objects are those that were reviewed (UPDATE_GOLDEN=1 writes them)."""
    objects = render()
    objects.pop(CRD)
    _compare([*objects.values()], "default")


def _compare(objects: list[dict[str, Any]], name: str) -> None:
    made = yaml.safe_dump_all(objects, sort_keys=False)
    path = GOLDEN / f"{name}.yaml"
    assert_reviewed(path, made)


@pytest.mark.parametrize("values", [{}, _SOME], ids=["default", "some"])
def test_objects_fit_kubernetes_schemas(render: Render, values: dict[str, Any]) -> None:
    """No object has a field that Kubernetes does not know."""
    for thing in render(values).values():
        kubernetes_validate.validate(thing, KUBERNETES, strict=True)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"imgae": {}}, "imgae"),
        ({"image": {"tag": "1"}}, "tag"),
        ({"workers": "many"}, "/workers"),
        ({"workers": 0}, "/workers"),
        ({"replicas": 0}, "/replicas"),
        ({"apiRequests": {"perSecond": 0}}, "/apiRequests/perSecond"),
        ({"nodeLossSeconds": 5}, "/nodeLossSeconds"),
        ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
        ({"watchNamespaces": "a,b"}, "/watchNamespaces"),
        ({"watchNamespaces": ["A"]}, "/watchNamespaces"),
        ({"crds": {"keep": "yes"}}, "/crds/keep"),
        ({"prices": {"v5e": {"Spott": 1}}}, "Spott"),
        ({"monitoring": {"monitors": {"interval": "often"}}}, "/monitoring/monitors/interval"),
        ({"templatePolicy": {"allow": ["hostFiles"]}}, "/templatePolicy/allow/0"),
    ],
    ids=str,
)
def test_wrong_values_are_refused(chart_path: Path, values: dict[str, Any], words: str) -> None:
    """An unknown key or a wrong type is refused by name."""
    with Chart.load(chart_path) as chart, pytest.raises(HelmValuesError, match=words):
        chart.validate_schema(values)


def test_schema_knows_every_value(chart_path: Path) -> None:
    """Every default value is in the schema, so that nothing documented is refused."""
    with Chart.load(chart_path) as chart:
        assert chart.schema is not None
        known = chart.schema["properties"]
        for key, value in chart.values.items():
            inner = known[key].get("properties")
            assert inner is None or set(value) <= set(inner)


def test_environment_is_what_the_operator_reads(render: Render) -> None:
    """Every variable of the Deployment is a setting, and no setting without default is missing."""
    given = {item["name"]: item.get("value") for item in _container(render())["env"]}
    settings = {variable_of(name): field for name, field in Settings.model_fields.items()}
    assert set(given) <= set(settings)
    assert {name for name, field in settings.items() if field.is_required()} <= set(given)
    filled = {name: value or "x" * 20 for name, value in given.items()}
    filled["TPUJOB_WATCH_NAMESPACES"] = given["TPUJOB_WATCH_NAMESPACES"] or ""
    read = Settings.from_env(filled)
    container = {port["name"]: port["containerPort"] for port in _container(render())["ports"]}
    assert container == {"metrics": read.metrics_port, "probes": read.probe_port}


def test_images_follow_the_release(render: Render, chart_path: Path) -> None:
    """By default operator and trainer images have the version of the app; values override them."""
    with Chart.load(chart_path) as chart:
        version = chart.metadata["appVersion"]
    given = {item["name"]: item.get("value") for item in _container(render())["env"]}
    assert given["TPUJOB_OPERATOR_IMAGE"] == f"tpujob/operator:{version}"
    assert given["TPUJOB_TRAINER_IMAGE"] == f"tpujob/trainer:{version}"
    assert _container(render())["image"] == given["TPUJOB_OPERATOR_IMAGE"]
    mine = _container(render(_SOME))
    assert mine["image"] == "mine/operator:1"
    assert {"name": "TPUJOB_TRAINER_IMAGE", "value": "mine/trainer:1"} in mine["env"]


def test_rights_end_at_the_watched_namespaces(render: Render) -> None:
    """With namespaces named, rights on jobs and pods are bound in these only."""
    objects = render(_SOME)
    assert "ClusterRoleBinding/tpujob-operator-jobs" not in objects
    bindings = [key for key in objects if key.startswith("RoleBinding/")]
    assert sorted(bindings) == [
        "RoleBinding/tpujob-operator-jobs",  # one name, in two namespaces
        "RoleBinding/tpujob-operator-key",
        "RoleBinding/tpujob-operator-lease",
        "RoleBinding/tpujob-operator-node-leases",
    ]
    given = {item["name"]: item.get("value") for item in _container(objects)["env"]}
    assert given["TPUJOB_WATCH_NAMESPACES"] == "a,b"


def test_one_of_several_replicas_acts(render: Render) -> None:
    """Replicas share a Lease, are spread over nodes, and are never drained at once."""
    objects = render()
    deployment = objects["Deployment/tpujob-operator"]["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    pod = deployment["template"]
    given = {item["name"]: item.get("value") for item in _container(objects)["env"]}
    (_, named) = objects["Role/tpujob-operator-lease"]["rules"]
    assert named["resourceNames"] == [given["TPUJOB_LEASE_NAME"]]
    budget = objects["PodDisruptionBudget/tpujob-operator"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (spread,) = pod["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"] == budget["selector"]
    assert "PodDisruptionBudget/tpujob-operator" not in render({"replicas": 1})


def test_dead_node_is_left_soon(render: Render) -> None:
    """Ten seconds instead of Kubernetes' 300, unless the user gives a toleration of that key."""

    def tolerations(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
        deployment = render({"tolerations": given})["Deployment/tpujob-operator"]
        found: list[dict[str, Any]] = deployment["spec"]["template"]["spec"]["tolerations"]
        return found

    unreachable = "node.kubernetes.io/unreachable"
    seconds = {item["key"]: item["tolerationSeconds"] for item in tolerations([])}
    assert seconds == {"node.kubernetes.io/not-ready": 10, unreachable: 10}
    own = {"key": unreachable, "operator": "Exists", "tolerationSeconds": 60}
    assert [item for item in tolerations([own]) if item["key"] == unreachable] == [own]
    everything = {"operator": "Exists"}
    assert tolerations([everything])[-1] == everything


def test_priority_only_on_request(render: Render) -> None:
    """FlowSchemas name the operator's account, and the Lease's goes first."""
    assert not [key for key in render() if key.startswith("FlowSchema/")]
    objects = render({"apiPriority": {"enabled": True}})
    schemas = [objects[f"FlowSchema/tpujob-operator{end}"]["spec"] for end in ("-lease", "")]
    assert schemas[0]["matchingPrecedence"] < schemas[1]["matchingPrecedence"] < 9000
    for schema in schemas:
        (rule,) = schema["rules"]
        (subject,) = rule["subjects"]
        assert subject["serviceAccount"]["name"] == "tpujob-operator"


def test_rendering_makes_no_key(render: Render) -> None:
    """The operator makes its key, once: a chart rendered without a cluster would make another."""
    assert not [key for key in render() if key.startswith("Secret/")]
    assert render() == render()
    rules = render({"operatorKey": {"existingSecret": "mine"}})["Role/tpujob-operator-key"]["rules"]
    assert [(rule["resourceNames"], rule["verbs"]) for rule in rules] == [(["mine"], ["get"])]


def test_templates_are_judged_by_default(render: Render, chart_path: Path) -> None:
    """The policy can be opened and switched off, and is never empty."""
    key = "ValidatingAdmissionPolicy/tpujob-operator-templates"
    schema = json.loads((chart_path / "values.schema.json").read_text())["properties"]
    groups = schema["templatePolicy"]["properties"]["allow"]["items"]["enum"]
    policies = [render({"templatePolicy": {"allow": [group]}})[key] for group in groups]
    closed = len(render()[key]["spec"]["validations"])
    assert closed == len(groups)
    assert {len(policy["spec"]["validations"]) for policy in policies} == {closed - 1}
    assert key not in render({"templatePolicy": {"enabled": False}})
    with pytest.raises(HelmError, match="templatePolicy allows everything"):
        render({"templatePolicy": {"allow": groups}})


def test_pod_fits_the_restricted_standard(render: Render) -> None:
    """The operator runs as nobody, without capabilities, on a read-only file system."""
    pod = render()["Deployment/tpujob-operator"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    context = pod["containers"][0]["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}


def test_crd_switches(render: Render) -> None:
    """The CRD stays on uninstall by default, and can be left to somebody else."""
    kept = render()[CRD]["metadata"]["annotations"]
    assert kept == {"helm.sh/resource-policy": "keep"}
    assert not render({"crds": {"keep": False}})[CRD]["metadata"].get("annotations")
    assert CRD not in render({"crds": {"enabled": False}})


def test_other_switches(render: Render) -> None:
    """Service account, roles and key can come from elsewhere."""
    values = {
        "serviceAccount": {"create": False, "name": "mine"},
        "rbac": {"create": False, "aggregateToDefaultRoles": False},
        "operatorKey": {"existingSecret": "mine"},
        "templatePolicy": {"enabled": False},
        "operatorPolicy": {"enabled": False},
        "networkPolicy": {"enabled": False},
    }
    kinds = {key.split("/")[0] for key in render(values)}
    assert kinds == {"Deployment", "PodDisruptionBudget", "Service", "CustomResourceDefinition"}
    with pytest.raises(HelmError, match=r"serviceAccount\.name is needed"):
        render({"serviceAccount": {"create": False}})


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("tpujob", "tpujob-operator"),
        ("tpujob-operator", "tpujob-operator"),
        ("x" * 53, "x" * 50),
    ],
)
def test_names_follow_the_release(render: Render, release: str, expected: str) -> None:
    """Objects are named after the release, briefly."""
    assert f"Deployment/{expected}" in render(name=release)


def test_notes_say_what_to_do(chart_path: Path) -> None:
    """After the installation the user is told the next commands, and that JobSet is missing."""
    with Chart.load(chart_path) as chart:
        files = chart.render({}, name="tpujob", namespace="n")
    notes = next(text for path, text in files.items() if path.endswith("NOTES.txt"))
    assert "kubectl get tpujob" in notes
    assert "JobSet is NOT installed" in notes


def test_monitors_find_what_is_there(render: Render) -> None:
    """They are off by default; their selectors and ports are those of Service and coordinator."""
    assert not {"ServiceMonitor", "PodMonitor"} & {key.split("/")[0] for key in render()}
    on = {"monitors": {"enabled": True, "labels": {"release": "prometheus"}}}
    objects = render({"monitoring": on, "watchNamespaces": ["a"]})
    service = objects["Service/tpujob-operator-metrics"]
    monitor = objects["ServiceMonitor/tpujob-operator"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    selector = monitor["spec"]["selector"]["matchLabels"]
    assert selector.items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    pods = objects["PodMonitor/tpujob-operator-coordinators"]["spec"]
    labels = names.labels("j", 1, names.ROLE_COORDINATOR)
    assert pods["selector"]["matchLabels"].items() <= labels.items()
    assert pods["namespaceSelector"] == {"matchNames": ["a"]}
    [endpoint] = pods["podMetricsEndpoints"]
    assert endpoint["path"] == METRICS_PATH
    assert endpoint["honorLabels"] is False
    kept = next(rule["regex"] for rule in endpoint["metricRelabelings"] if "action" in rule)
    assert all(re.fullmatch(kept, family.series) for family in of_coordinator())


def test_networks_are_closed_to_others(render: Render) -> None:
    """Policies select the pods that there are, by labels and ports that these have."""
    objects = render({"watchNamespaces": ["a"], "networkPolicy": {"namespaces": ["b", "a"]}})
    policies = {
        (item["metadata"]["name"], item["metadata"]["namespace"]): item["spec"]
        for item in rendered({"networkPolicy": {"namespaces": ["b", "c"]}})
        if item["kind"] == "NetworkPolicy"
    }
    assert set(policies) == {
        ("tpujob-operator", "tpujob-system"),
        *(
            (f"tpujob-operator-{role}s", where)
            for role in ("coordinator", "worker")
            for where in "bc"
        ),
    }
    operator = objects["NetworkPolicy/tpujob-operator"]["spec"]
    pod = objects["Deployment/tpujob-operator"]["spec"]["template"]["metadata"]["labels"]
    assert operator["podSelector"]["matchLabels"].items() <= pod.items()
    ports = {port["name"] for port in _container(objects)["ports"]}
    assert {rule["ports"][0]["port"] for rule in operator["ingress"]} == ports
    coordinators = objects["NetworkPolicy/tpujob-operator-coordinators"]["spec"]
    role = names.labels("j", 1, names.ROLE_COORDINATOR)
    assert coordinators["podSelector"]["matchLabels"].items() <= role.items()
    told = operator["egress"][-1]["to"][0]["podSelector"]["matchLabels"]
    assert told == coordinators["podSelector"]["matchLabels"]
    assert operator["egress"][-1]["ports"] == [{"port": HTTP_PORT}]
    assert "egress" not in coordinators  # none is allowed
    workers = objects["NetworkPolicy/tpujob-operator-workers"]["spec"]["podSelector"]["matchLabels"]
    assert workers.items() <= names.labels("j", 1, names.ROLE_WORKER).items()
    for rule in coordinators["ingress"]:
        assert rule["from"]


def test_rules_are_the_file(render: Render, chart_path: Path) -> None:
    """Off by default; on, they are the plain file, with the runbook where the user has it."""
    assert "PrometheusRule/tpujob-operator" not in render()
    on = {"rules": {"enabled": True, "runbook": "https://wiki/runbook"}}
    rule = render({"monitoring": on})["PrometheusRule/tpujob-operator"]
    text = (chart_path / "files/rules.yaml").read_text()
    plain = yaml.safe_load(text.replace("docs/runbook.md", "https://wiki/runbook"))
    assert rule["spec"] == plain


def test_dashboards_are_the_files(render: Render, chart_path: Path) -> None:
    """Off by default; on, each file comes in a ConfigMap that Grafana's side-car finds."""
    assert "ConfigMap" not in {key.split("/")[0] for key in render()}
    objects = render({"monitoring": {"dashboards": {"enabled": True}}})
    for path in (chart_path / "files/dashboards").iterdir():
        found = objects[f"ConfigMap/tpujob-operator-dashboard-{path.stem}"]
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert json.loads(found["data"][f"tpujob-{path.name}"]) == json.loads(path.read_text())


def test_prices_reach_the_operator(render: Render) -> None:
    """What the user gives is what the operator reads."""
    environment = _container(render({"prices": {"v5e": {"Spot": 0.4}}}))["env"]
    given = {item["name"]: item.get("value") for item in environment}
    given |= {"TPUJOB_OPERATOR_KEY": "x" * 20, "TPUJOB_NAMESPACE": "n"}
    assert Settings.from_env(given).prices == {"v5e": {Provisioning.SPOT: 0.4}}
