"""Simulated nodes: kwok plays their kubelets, so that a hundred cost next to nothing.

Pods on them turn Running at once and stay so (kwok's own rule would complete the pods
of a Job at once, which no training job does). A test decides a pod's end by annotation:

    localcluster.tpujob.dev/exit-code: "0"    the pod succeeds; any other number: it fails
"""

from pathlib import Path
from typing import Any

import yaml

from localcluster import binaries
from localcluster.controlplane import Daemon
from localcluster.kubeapi import Object
from localcluster.layout import KWOK_POD_CIDR, Layout, Spec
from localcluster.tpu import TAINT, tpu_labels

EXIT_CODE = "localcluster.tpujob.dev/exit-code"
CPU_NODE = "kwok-cpu0"
_FAKE = "kwok.x-k8s.io/node"
_LEASE_S = 40


def stages() -> list[Object]:
    """The rules of kwok for nodes and pods, the one for a pod's end replaced by ours."""
    texts = [path.read_text(encoding="utf-8") for path in binaries.assets("kwok")]
    read: list[Object] = [stage for text in texts for stage in yaml.safe_load_all(text)]
    kept = [stage for stage in read if stage["metadata"]["name"] != "pod-complete"]
    return [
        *kept,
        _end_stage("pod-succeed", "In", "Succeeded"),
        _end_stage("pod-fail", "NotIn", "Failed"),
    ]


def _end_stage(name: str, zero: str, phase: str) -> Object:
    annotation = f'.metadata.annotations["{EXIT_CODE}"]'
    template = _END.replace("PHASE", phase).replace("EXIT_CODE", EXIT_CODE)
    expressions: list[dict[str, Any]] = [
        {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"},
        {"key": ".status.phase", "operator": "In", "values": ["Running"]},
        {"key": annotation, "operator": "Exists"},
        {"key": annotation, "operator": zero, "values": ["0"]},
    ]
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
            "selector": {"matchExpressions": expressions},
            "next": {"statusTemplate": template},
        },
    }


_END = """\
{{ $now := Now }}
{{ $root := . }}
containerStatuses:
{{ range $index, $item := .spec.containers }}
- image: {{ $item.image | Quote }}
  name: {{ $item.name | Quote }}
  ready: false
  restartCount: 0
  started: false
  state:
    terminated:
      exitCode: {{ index $root.metadata.annotations "EXIT_CODE" }}
      finishedAt: {{ $now | Quote }}
      reason: {{ if eq "PHASE" "Succeeded" }}Completed{{ else }}Error{{ end }}
      startedAt: {{ $now | Quote }}
{{ end }}
phase: PHASE
"""


def daemon(binary: Path, layout: Layout) -> Daemon:
    """The process of kwok."""
    config = layout.root / "kwok.yaml"
    config.write_text(yaml.safe_dump_all(stages()), encoding="utf-8")
    flags = {
        "kubeconfig": str(layout.kubeconfig_of("extension")),
        "config": str(config),
        "manage-all-nodes": "false",
        "manage-nodes-with-annotation-selector": f"{_FAKE}=fake",
        "node-lease-duration-seconds": str(_LEASE_S),
        "cidr": KWOK_POD_CIDR,
        "server-address": "",
    }
    return Daemon("kwok", [str(binary), *(f"--{name}={value}" for name, value in flags.items())])


def nodes(spec: Spec) -> list[Object]:
    """The simulated nodes; where there are no real ones, one without TPUs comes with them."""
    fakes = [
        _node(spec, name, tpu_labels(spec, index, "kwok-slice"), tpus=spec.chips_per_host)
        for index, name in enumerate(spec.kwok_nodes)
    ]
    if spec.control_plane_only and fakes:
        fakes.append(_node(spec, CPU_NODE, {}, tpus=0))
    return fakes


def _node(spec: Spec, name: str, labels: dict[str, str], tpus: int) -> Object:
    resources = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110"}
    if tpus:
        resources["google.com/tpu"] = str(tpus)
    taints = [TAINT] if tpus and spec.taint else []
    if not spec.control_plane_only:
        # Beside real nodes, only pods that ask for it may land where no container runs.
        taints = [*taints, {"key": _FAKE, "value": "fake", "effect": "NoSchedule"}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {_FAKE: "fake", "node.alpha.kubernetes.io/ttl": "0"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "type": "kwok",
                **labels,
            },
        },
        "spec": {"taints": taints},
        "status": {"allocatable": resources, "capacity": resources},
    }
