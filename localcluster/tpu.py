"""What makes a node look like a GKE TPU host."""

from localcluster.layout import Spec

RESOURCE = "google.com/tpu"
TAINT = {"key": RESOURCE, "value": "present", "effect": "NoSchedule"}


def tpu_labels(spec: Spec, index: int, pool: str = "slice") -> dict[str, str]:
    """GKE's labels for the host number `index`: one node pool per slice."""
    return {
        "cloud.google.com/gke-tpu-accelerator": spec.accelerator,
        "cloud.google.com/gke-tpu-topology": spec.topology,
        "cloud.google.com/gke-nodepool": f"{pool}-{index // spec.hosts_per_slice}",
    }
