"""What `kubectl tpujob doctor` finds wrong, and says to do."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tests.cli.conftest import Run
from tpujob_operator.api.crd import custom_resource_definition
from tpujob_operator.cli.__main__ import main
from tpujob_operator.cli.checks import Check, Cluster, Level, Node, examine
from tpujob_operator.core.nodes import NodeView

_CRD = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
_PARTS = ("network", "successPolicy", "failurePolicy", "replicatedJobs", "suspend")
_JOBSET: dict[str, dict[str, Any]] = {part: {} for part in _PARTS}
_DEPLOYMENT = {"metadata": {"namespace": "tpujob-system", "name": "tpujob-operator"}}


def _node(name: str, *, is_ready: bool = True, chips: int = 4) -> Node:
    shape = ("tpu-v5-lite-podslice", "2x4")
    return Node(NodeView(name, name, 0, pool="pool", shape=shape, is_ready=is_ready), chips)


WELL = Cluster(
    namespace="research",
    version="v1.36.3",
    skew_s=0.4,
    jobs_schema=_CRD["properties"]["spec"],
    jobset_schema={"properties": _JOBSET},
    operators=[{**_DEPLOYMENT, "status": {"readyReplicas": 1}}],
    nodes=[_node("a"), _node("b")],
    refused=(),
    queues=["research-tpu"],
    quotas=[],
    dns=[{"endpoints": [{"conditions": {"ready": True}}]}],
)
_QUOTA = {
    "metadata": {"name": "chips"},
    "status": {"hard": {"requests.google.com/tpu": "8"}, "used": {"requests.google.com/tpu": "8"}},
}


def test_nothing_is_wrong_with_a_good_cluster() -> None:
    """And it says which slices there are."""
    found = list(examine(WELL))
    assert {check.level for check in found} == {Level.OK}
    (slices,) = (check for check in found if "2x4" in check.what)
    assert slices.found == "1 whole (v5e, 2 hosts each)"


@pytest.mark.parametrize(
    ("change", "level", "what", "words"),
    [
        ({"skew_s": -60.0}, Level.WARNING, "clock", "synchronise"),
        ({"jobs_schema": {}}, Level.BAD, "TPUTrainingJob", "chart"),
        ({"jobs_schema": None}, Level.WARNING, "TPUTrainingJob", "may not read"),
        ({"jobs_schema": {"properties": {"slices": {}}}}, Level.WARNING, "TPUTrainingJob", "CRDs"),
        ({"jobset_schema": {}}, Level.BAD, "JobSet", "jobset.sigs.k8s.io"),
        ({"jobset_schema": {"properties": {"suspend": {}}}}, Level.BAD, "JobSet", "0.12"),
        ({"operators": []}, Level.BAD, "operator", "chart"),
        ({"operators": [_DEPLOYMENT]}, Level.BAD, "operator", "describe pods"),
        ({"refused": ["create tputrainingjobs"]}, Level.WARNING, "your rights", "edit"),
        ({"quotas": [_QUOTA]}, Level.WARNING, "quota chips", "no pod"),
        ({"dns": []}, Level.WARNING, "DNS", "by its name"),
        (
            {"dns": [{"endpoints": [{"conditions": {"ready": False}}]}]},
            Level.WARNING,
            "DNS",
            "runs",
        ),
        ({"nodes": []}, Level.WARNING, "TPU nodes", "node pool"),
        ({"nodes": [_node("a"), _node("b", is_ready=False)]}, Level.WARNING, "slices", "pool"),
        ({"nodes": [_node("a"), _node("b", chips=0)]}, Level.WARNING, "slices", "pool"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(
    change: dict[str, Any], level: Level, what: str, words: str
) -> None:
    """One thing at a time; all else stays well."""
    found = list(examine(dataclasses.replace(WELL, **change)))
    (check,) = (check for check in found if check.level is not Level.OK)
    assert check.level is level
    assert check.what.startswith(what)
    assert words in check.advice


@pytest.mark.control_plane
def test_a_cluster_without_a_running_operator(run: Run) -> None:
    """The real API server with our CRD and JobSet; what is bad is in the exit code."""
    status, said, _ = run("doctor", "-o", "json")
    found = {check["what"]: Check(**check) for check in json.loads(said)}
    assert found["TPUTrainingJob"].level == Level.OK
    assert found["JobSet"].level == Level.OK
    assert found["your rights"].level == Level.OK
    assert found["API server"].found.startswith("v1.")
    assert found["operator"].level == Level.BAD
    assert found["DNS"].found == "no ready endpoint of kube-dns in kube-system"
    assert status == 1
    assert "bad" in run("doctor")[1]


def test_missing_kubeconfig_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback, but what to give."""
    assert main(["doctor", "--kubeconfig", "/nowhere"]) == 1
    assert "give --kubeconfig" in capsys.readouterr().err
