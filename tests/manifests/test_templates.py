"""What the user's own template says stays, and what is added to it."""

from __future__ import annotations

from collections.abc import Callable

from tests.manifests.parts import (
    CONTAINER,
    Object,
    environment_of,
    jobset_of,
    pods_of,
    trainer_of,
    worker_of,
)
from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.core.manifests.options import ManifestOptions

MakeJob = Callable[..., TPUTrainingJob]


def test_own_command_is_wrapped(templated: MakeJob, options: ManifestOptions) -> None:
    """The agent runs the user's command and arguments as they are."""
    container = trainer_of(templated({"containers": [CONTAINER]}), options)
    assert container["command"] == [
        "python3", "/tpujob/agent.pyz", "--", "python", "t.py", "-v",
    ]  # fmt: skip
    assert "args" not in container
    assert container["image"] == "mine"
    assert "imagePullPolicy" not in container


def test_template_survives(templated: MakeJob, options: ManifestOptions) -> None:
    """Whatever the user's template says stays: side cars, volumes, tolerations, contexts."""
    given: Object = {
        "containers": [
            {"name": "side", "image": "s", "command": ["x"], "args": ["y"]},
            {
                **CONTAINER,
                "name": "trainer",
                "env": [{"name": "TPU_TOPOLOGY", "value": "mine"}, {"name": "A", "value": "1"}],
                "resources": {"limits": {"memory": "9Gi"}},
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "securityContext": {"privileged": True},
            },
        ],
        "initContainers": [{"name": "first", "image": "f"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "node.kubernetes.io/unreachable", "operator": "Exists"}],
        "terminationGracePeriodSeconds": 7,
        "securityContext": {"fsGroup": 5},
        "hostNetwork": True,
    }
    pod = worker_of(templated(given), options)
    side, trainer = pod["containers"]
    assert side == given["containers"][0]
    assert trainer["securityContext"] == {"privileged": True}
    assert trainer["resources"]["limits"] == {"memory": "9Gi", "google.com/tpu": "4"}
    found = environment_of(trainer)
    assert (found["TPU_TOPOLOGY"], found["A"]) == ("mine", "1")
    assert {"name": "v", "mountPath": "/v"} in trainer["volumeMounts"]
    assert [c["name"] for c in pod["initContainers"]] == ["tpujob-agent", "first"]
    assert [v["name"] for v in pod["volumes"]] == ["v", "tpujob", "tpujob-snapshots"]
    assert pod["nodeSelector"]["zone"] == "a"
    keys = [t["key"] for t in pod["tolerations"]]
    assert sorted(keys) == sorted(set(keys))
    assert given["tolerations"][0] in pod["tolerations"]
    assert pod["dnsPolicy"] == "ClusterFirstWithHostNet"
    for kept in ("terminationGracePeriodSeconds", "securityContext", "hostNetwork"):
        assert pod[kept] == given[kept]


def test_own_labels_and_annotations_survive(example: MakeJob, options: ManifestOptions) -> None:
    """Labels and annotations of the template are on the pods, ours win."""
    stay = "cluster-autoscaler.kubernetes.io/safe-to-evict"
    annotations = {"c": "d", stay: "true"}
    metadata = {"labels": {"a": "b", "tpujob.dev/job": "other"}, "annotations": annotations}
    template = {"metadata": metadata, "spec": {"containers": [CONTAINER]}}
    pod = pods_of(jobset_of(example("own-program", template=template), options))["slice"]
    assert pod["metadata"]["labels"]["a"] == "b"
    assert pod["metadata"]["labels"]["tpujob.dev/job"] == "own-program"
    assert pod["metadata"]["annotations"] == annotations


def test_priority_class(example: MakeJob, options: ManifestOptions) -> None:
    """The job's priority class is that of all its pods."""
    pods = pods_of(jobset_of(example("llama3-8b"), options))
    assert {pod["spec"]["priorityClassName"] for pod in pods.values()} == {"training"}


def test_our_containers_fit_the_restricted_standard(
    example: MakeJob, options: ManifestOptions
) -> None:
    """Coordinator and agent run as nobody, without capabilities, on a read-only file system."""
    pods = pods_of(jobset_of(example("own-program"), options))
    coordinator = pods["coordinator"]["spec"]
    assert coordinator["automountServiceAccountToken"] is False
    for container in (*coordinator["containers"], pods["slice"]["spec"]["initContainers"][0]):
        context = container["securityContext"]
        assert context["runAsNonRoot"] is context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert "limits" in container["resources"]
