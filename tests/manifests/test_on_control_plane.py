"""The objects on a real control plane: JobSet takes them and makes the pods that we count on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster.cluster import Cluster
from localcluster.kubeapi import ApiError
from tests.waiting import wait_until
from tpujob_operator.api.models import TPUTrainingJob, parse_job
from tpujob_operator.core.manifests import build
from tpujob_operator.core.manifests.options import ManifestOptions

pytestmark = pytest.mark.control_plane

EXAMPLES = Path(__file__).parents[2] / "examples"
Object = dict[str, Any]


class Place:
    """A namespace of a control plane."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.api = cluster.api
        self.namespace = namespace

    def create(self, raw: Object) -> TPUTrainingJob:
        """Create a job and read it back as the operator would."""
        path = f"/apis/tpujob.dev/v1alpha1/namespaces/{self.namespace}/tputrainingjobs"
        return parse_job(self.api.request("POST", path, raw))

    def list(self, group: str, plural: str) -> list[Object]:
        """Objects of a kind."""
        path = f"/{group}/namespaces/{self.namespace}/{plural}"
        return list(self.api.get(path)["items"])

    def apply(self, thing: Object) -> Object:
        """Apply an object with the operator's field manager."""
        group, plural = thing["apiVersion"], thing["kind"].lower() + "s"
        root = f"apis/{group}" if "/" in group else f"api/{group}"
        path = f"/{root}/namespaces/{self.namespace}/{plural}/{thing['metadata']['name']}"
        query = "?fieldManager=tpujob-operator&force=true"
        content = "application/apply-patch+yaml"
        return dict(self.api.request("PATCH", path + query, thing, content))


@pytest.fixture
def place(control_plane: Cluster, namespace: str) -> Place:
    """A namespace of one's own."""
    return Place(control_plane, namespace)


def _raw(name: str) -> Object:
    raw: Object = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    raw["spec"].pop("priorityClassName", None)  # belongs to the whole cluster
    return raw


@pytest.mark.parametrize("name", ["demo", "own-program", "llama3-8b"])
def test_jobset_makes_the_pods(name: str, place: Place, options: ManifestOptions) -> None:
    """JobSet's webhooks take the objects, and pods of both kinds are made with our labels."""
    place.apply(
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "trainer", "namespace": place.namespace},
        }
    )
    job = place.create(_raw(name))
    for thing in build(job, attempt=1, options=options):
        place.apply(thing)
    wanted = {f"{name}-1-slice-{index}" for index in range(job.spec.slices)}
    wanted.add(f"{name}-1-coordinator-0")

    def have_pods() -> bool:
        owners = [pod["metadata"]["ownerReferences"] for pod in place.list("api/v1", "pods")]
        return {owner["name"] for [owner] in owners} == wanted

    wait_until(have_pods, "a pod of the coordinator and of each slice")
    assert {item["metadata"]["name"] for item in place.list("apis/batch/v1", "jobs")} == wanted
    for pod in place.list("api/v1", "pods"):
        labels = pod["metadata"]["labels"]
        assert labels["tpujob.dev/job"] == name
        assert labels["jobset.sigs.k8s.io/job-index"].isdigit()
        assert pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] == "0"


def test_applying_again_changes_nothing(place: Place, options: ManifestOptions) -> None:
    """A second apply leaves every object's version as it was: reconciling converges."""
    job = place.create(_raw("demo") | {"spec": _raw("demo")["spec"] | {"suspend": True}})
    objects = build(job, attempt=1, options=options)
    first = [place.apply(thing) for thing in objects]
    second = [place.apply(thing) for thing in objects]
    versions = [[a["metadata"]["resourceVersion"] for a in made] for made in (first, second)]
    assert versions[0][:2] == versions[1][:2]
    assert json.dumps(first[2]["spec"], sort_keys=True) == json.dumps(
        second[2]["spec"], sort_keys=True
    )


def test_pods_of_a_jobset_are_fixed(place: Place, options: ManifestOptions) -> None:
    """Why attempts have names of their own: the pods of a JobSet can never be changed."""
    job = place.create(_raw("demo"))
    jobset = build(job, attempt=1, options=options)[-1]
    place.apply(jobset)
    jobset["spec"]["replicatedJobs"][1]["replicas"] += 1
    with pytest.raises(ApiError, match="immutable"):
        place.apply(jobset)
