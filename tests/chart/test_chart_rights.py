"""The rights that the chart grants: no more than the operator needs."""

from __future__ import annotations

from typing import Any

from tests.chart.conftest import Objects, Render


def _rules(objects: Objects) -> list[dict[str, Any]]:
    roles = (thing for key, thing in objects.items() if key.startswith("ClusterRole/"))
    own = (role for role in roles if role["metadata"]["name"].endswith(("-jobs", "-discovery")))
    return [rule for role in own for rule in role["rules"]]


def test_rights_are_small(render: Render) -> None:
    """No wildcards, no reading of Secrets, no commands in pods, no making of rights."""
    for rule in _rules(render()):
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert "rbac.authorization.k8s.io" not in rule["apiGroups"]
        assert not {"pods/exec", "pods/attach", "serviceaccounts/token"} & set(rule["resources"])
        if "secrets" in rule["resources"]:
            is_the_key = rule.get("resourceNames") == ["tpujob-operator-key"]
            assert rule["verbs"] == ["get" if is_the_key else "create"]


def test_nodes_are_changed_only_on_request(render: Render) -> None:
    """The right to taint nodes comes with the wish for it."""
    for wished in (False, True):
        rules = render({"taintSuspects": wished})["ClusterRole/tpujob-operator-discovery"]["rules"]
        (nodes,) = (rule for rule in rules if rule["resources"] == ["nodes"])
        assert ("patch" in nodes["verbs"]) is wished
