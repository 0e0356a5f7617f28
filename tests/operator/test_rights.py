"""The rights that the chart gives are enough: the operator runs with them and no others."""

import json
from pathlib import Path
from typing import Any

import pytest

from localcluster.cluster import Cluster
from tests.accounts import kubeconfig_of
from tests.operator.rig import Jobs, running
from tests.rendering import rendered
from tests.waiting import wait_until
from tpujob_operator.core.kinds import JOB, TPU_TRAINING_JOB

pytestmark = pytest.mark.control_plane


def _rights(namespace: str) -> list[dict[str, Any]]:
    """Service account, roles and bindings as the chart makes them, for one namespace."""
    documents = rendered({"watchNamespaces": [namespace]}, name=namespace, namespace=namespace)
    wanted = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    return [item for item in documents if item["kind"] in wanted]


def test_chart_gives_all_rights_that_are_used(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path, silent_node: str
) -> None:
    """With refused pods, a lost pod and node, a suspension and a deletion nothing is forbidden."""
    namespace = own_jobs.namespace
    rights = _rights(namespace)
    for item in rights:
        control_plane.kubectl("apply", "-f", "-", stdin=json.dumps(item))
    account = next(i["metadata"]["name"] for i in rights if i["kind"] == "ServiceAccount")
    kubeconfig = kubeconfig_of(control_plane, namespace, account, tmp_path / "kubeconfig")
    try:
        env = {
            "KUBECONFIG": str(kubeconfig),
            "TPUJOB_COORDINATOR_ACCESS": "direct",
            "TPUJOB_NODE_LOSS_S": "1",
        }
        with running(control_plane, tmp_path, namespace, env=env) as operator:
            trainer = {"config": {"steps": 1}, "serviceAccountName": "nobody"}
            own_jobs.create("refused", trainer=trainer)
            own_jobs.wait_condition("refused", "Stalled", "PodsRefused")
            own_jobs.delete(TPU_TRAINING_JOB, "refused")
            own_jobs.wait_gone(TPU_TRAINING_JOB, "refused")
            own_jobs.create("checked", preflight="Compile")
            own_jobs.wait(JOB, "checked-preflight")
            own_jobs.create("j", ttlSecondsAfterFinished=0)
            pod = next(p for p in own_jobs.run_pods("j", 3) if "slice-0" in p["metadata"]["name"])
            uid = own_jobs.wait(JOB, "j-1-slice-0")["metadata"]["uid"]
            own_jobs.remove_pod(pod["metadata"]["name"])
            own_jobs.wait_gone(JOB, "j-1-slice-0", uid)
            pod = next(p for p in own_jobs.wait_pods("j", 3) if not p["spec"].get("nodeName"))
            own_jobs.evict(own_jobs.run_pod(pod, silent_node))
            own_jobs.wait_event("j", "NodeGone")
            own_jobs.change("j", suspend=True)
            own_jobs.wait_condition("j", "Suspended")
            own_jobs.end_pods("j")
            own_jobs.change("j", suspend=False)
            for other in own_jobs.run_pods("j", 3):
                if "coordinator" in other["metadata"]["name"]:
                    own_jobs.set_pod(other["metadata"]["name"], {"phase": "Succeeded"})
            own_jobs.wait_gone(TPU_TRAINING_JOB, "j")
            wait_until(lambda: own_jobs.events("j"), "events")
            metrics = operator.get("metrics", "/metrics")
        assert 'code="403"' not in metrics, operator.text
        assert "orbidden" not in operator.text
    finally:
        for item in rights:
            if item["kind"].startswith("Cluster"):
                control_plane.kubectl("delete", item["kind"], item["metadata"]["name"])
