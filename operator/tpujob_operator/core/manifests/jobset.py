"""The JobSet of an attempt: the slices, and the coordinator of their agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.core.manifests import coordinator, names, pods, worker
from tpujob_operator.core.manifests.options import ManifestOptions
from tpujob_operator.core.manifests.secret import key_id
from tpujob_operator.core.manifests.shape import shape
from tpujob_operator.core.suspects import Avoided
from tpujob_tpu.catalogue import NODE_POOL_LABEL

API_VERSION = "jobset.x-k8s.io/v1alpha2"
_EXCLUSIVE_TOPOLOGY = "alpha.jobset.sigs.k8s.io/exclusive-topology"


def build(
    job: TPUTrainingJob,
    attempt: int,
    options: ManifestOptions,
    budgets_used: Mapping[str, int],
    avoided: Avoided,
) -> dict[str, Any]:
    """The JobSet of an attempt.

    It is applied once: everything but ``suspend`` is immutable.
    """
    has_agents = not job.spec.recovery.recreates_pods
    metadata = names.metadata(job, names.jobset(job.metadata.name, attempt), attempt)
    metadata["annotations"] = {names.SHAPE_ANNOTATION: shape(job)}
    if has_agents:
        metadata["annotations"][names.KEY_ID_ANNOTATION] = key_id(options.operator_key)
    if avoided.nodes:
        metadata["annotations"][names.AVOIDED_ANNOTATION] = ",".join(avoided.nodes)
    if job.spec.queue:
        metadata["labels"][names.QUEUE_LABEL] = job.spec.queue
    return {
        "apiVersion": API_VERSION,
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            # Kueue starts what is in a queue.
            "suspend": job.spec.suspend or bool(job.spec.queue),
            # Agents find each other before they are ready.
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            # The coordinator ends when the last world has finished, whatever else is pending.
            "successPolicy": {
                "operator": "All",
                "targetReplicatedJobs": [names.COORDINATOR if has_agents else names.SLICE],
            },
            # With agents Jobs never fail; if one does, the operator makes a new attempt.
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [
                *([_coordinator(job, attempt, options, budgets_used)] if has_agents else []),
                _slices(job, attempt, options, avoided),
            ],
        },
    }


def _coordinator(
    job: TPUTrainingJob,
    attempt: int,
    options: ManifestOptions,
    budgets_used: Mapping[str, int],
) -> dict[str, Any]:
    template = coordinator.pod_template(job, attempt, options, budgets_used)
    labels = names.labels(job.metadata.name, attempt, names.ROLE_COORDINATOR)
    return {
        "name": names.COORDINATOR,
        "replicas": 1,
        "template": pods.indexed_job(template, labels, pods=1),
    }


def _slices(
    job: TPUTrainingJob, attempt: int, options: ManifestOptions, avoided: Avoided
) -> dict[str, Any]:
    template = worker.pod_template(job, attempt, options, avoided)
    labels = names.labels(job.metadata.name, attempt, names.ROLE_WORKER)
    # Without agents nothing lost can be made up for within the attempt.
    limit = 0 if job.spec.recovery.recreates_pods else pods.BACKOFF_LIMIT
    made = pods.indexed_job(template, labels, pods=job.shape.hosts, backoff_limit=limit)
    if job.shape.hosts > 1 and not job.spec.queue_topology_label:
        # One slice per node pool: half-scheduled slices would steal chips from each other.
        # Hosts of single-host slices share a pool and are exclusive by their chips.
        # Where Kueue picks the nodes, two who decide could only disagree.
        made["metadata"]["annotations"] = {_EXCLUSIVE_TOPOLOGY: NODE_POOL_LABEL}
    replicas = job.spec.slices + job.spec.spares
    return {"name": names.SLICE, "replicas": replicas, "template": made}
