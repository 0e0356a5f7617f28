"""Where pods go by the way their chips are bought."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.golden import assert_reviewed
from tests.manifests.parts import CONTAINER, environment_of, worker_of
from tpujob_agent.protocol import Env
from tpujob_operator.api.models import InvalidJobError, TPUTrainingJob
from tpujob_operator.core.manifests.options import ManifestOptions
from tpujob_operator.core.nodes import NodeView

GOLDEN = Path(__file__).parent / "golden" / "provisioning.yaml"
MakeJob = Callable[..., TPUTrainingJob]
MODELS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "on demand": {"model": "OnDemand"},
    "spot": {"model": "Spot"},
    "reserved": {"model": "Reserved", "reservation": {"name": "r"}},
    "reserved elsewhere": {"model": "Reserved", "reservation": {"name": "r", "project": "p"}},
    "flex-start": {"model": "FlexStart"},
    "flex-start for a day": {"model": "FlexStart", "maxRunDurationSeconds": 86_400},
}


def test_golden(example: MakeJob, options: ManifestOptions) -> None:
    """Selectors, tolerations and affinity are those that were reviewed (UPDATE_GOLDEN=1)."""
    found = {}
    for name, provisioning in MODELS.items():
        pod = worker_of(example("demo", provisioning=provisioning), options)
        keys = ("nodeSelector", "tolerations", "affinity", "terminationGracePeriodSeconds")
        found[name] = {key: pod[key] for key in keys if key in pod}
    made = yaml.safe_dump(found, sort_keys=False)
    assert_reviewed(GOLDEN, made)


def test_grace_is_what_a_spot_node_gives(templated: MakeJob, options: ManifestOptions) -> None:
    """The agent is told the truth, unless the template says otherwise."""
    spot = {"model": "Spot"}
    pod = worker_of(templated({"containers": [CONTAINER]}, provisioning=spot), options)
    assert pod["terminationGracePeriodSeconds"] == 15
    assert environment_of(pod["containers"][0])[Env.GRACE_S] == "15"
    given = {"containers": [CONTAINER], "terminationGracePeriodSeconds": 60}
    pod = worker_of(templated(given, provisioning=spot), options)
    assert pod["terminationGracePeriodSeconds"] == 60


def test_own_terms_and_tolerations_stay(templated: MakeJob, options: ManifestOptions) -> None:
    """What the template asks for is asked for as well, and nothing is tolerated twice."""
    taint = {"key": "cloud.google.com/gke-spot", "operator": "Exists"}
    pod = {"containers": [CONTAINER], "tolerations": [taint], "nodeSelector": {"zone": "z"}}
    made = worker_of(templated(pod, provisioning={"model": "Spot"}), options)
    assert [t for t in made["tolerations"] if t["key"] == taint["key"]] == [taint]
    assert made["nodeSelector"]["zone"] == "z"
    rule = {"key": "zone", "operator": "In", "values": ["z"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    pod = {"containers": [CONTAINER], "affinity": affinity}
    made = worker_of(templated(pod, provisioning={"model": "OnDemand"}), options)
    node = made["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = node["nodeSelectorTerms"]
    assert term["matchExpressions"][0] == rule
    assert {item["operator"] for item in term["matchExpressions"][1:]} == {"DoesNotExist"}


@pytest.mark.parametrize(
    ("selector", "provisioning"),
    [
        ({"cloud.google.com/gke-spot": "true"}, {"model": "OnDemand"}),
        ({"cloud.google.com/gke-spot": "false"}, {"model": "Spot"}),
        ({"cloud.google.com/reservation-name": "mine"}, {"model": "FlexStart"}),
        (
            {"cloud.google.com/reservation-name": "mine"},
            {"model": "Reserved", "reservation": {"name": "other"}},
        ),
    ],
)
def test_other_nodes_than_those_bought_are_refused(
    templated: MakeJob, selector: dict[str, str], provisioning: dict[str, Any]
) -> None:
    """Such pods would wait for ever: the message says what to leave out."""
    with pytest.raises(InvalidJobError, match="leave it out, the operator selects the nodes"):
        templated({"containers": [CONTAINER], "nodeSelector": selector}, provisioning=provisioning)


def test_spot_nodes_are_known_by_the_label_that_pods_select(
    example: MakeJob, options: ManifestOptions
) -> None:
    """A node that a spot job runs on is one whose loss is a preemption."""
    labels = worker_of(example("demo", provisioning={"model": "Spot"}), options)["nodeSelector"]
    meta = {"name": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels}
    assert NodeView.of({"metadata": meta}).is_spot
