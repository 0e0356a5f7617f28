"""The kinds of Kubernetes objects the operator reads or writes, and where the API serves them."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """One resource of the Kubernetes API."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """As written in manifests: ``group/version``, or the version alone for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_path(self) -> str:
        """Path of the group and version, without a leading slash."""
        return f"apis/{self.api_version}" if self.group else f"api/{self.version}"

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Path of a collection, an object or its subresource; no namespace: the whole cluster."""
        parts = [self.group_path]
        parts += ["namespaces", namespace] if namespace else []
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/" + "/".join(parts)


TPU_TRAINING_JOB = Kind("tpujob.dev", "v1alpha1", "tputrainingjobs", "TPUTrainingJob")
JOB_SET = Kind("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
JOB = Kind("batch", "v1", "jobs", "Job")
POD = Kind("", "v1", "pods", "Pod")
SERVICE = Kind("", "v1", "services", "Service")
SECRET = Kind("", "v1", "secrets", "Secret")
EVENT = Kind("", "v1", "events", "Event")
NODE = Kind("", "v1", "nodes", "Node")
LEASE = Kind("coordination.k8s.io", "v1", "leases", "Lease")
#: Kueue's, in the version that it stores and the one before.
WORKLOADS = tuple(
    Kind("kueue.x-k8s.io", version, "workloads", "Workload") for version in ("v1beta2", "v1beta1")
)
#: Where every kubelet renews a lease of its node's name.
NODE_LEASE_NAMESPACE = "kube-node-lease"

#: Kinds the informer keeps in the cache, besides the jobs themselves.
CHILDREN = (JOB_SET, JOB, POD)
_BY_MANIFEST = {
    (kind.api_version, kind.kind): kind
    for kind in (TPU_TRAINING_JOB, JOB_SET, JOB, POD, SERVICE, SECRET, EVENT)
}


def kind_of(manifest: Mapping[str, Any]) -> Kind:
    """The kind of a manifest.

    Raises:
        KeyError: the operator does not handle this kind.
    """
    return _BY_MANIFEST[manifest["apiVersion"], manifest["kind"]]


@dataclasses.dataclass(frozen=True, slots=True)
class Ref:
    """Names one incarnation of an object: the UID makes sure that no namesake is meant."""

    kind: Kind
    namespace: str
    name: str
    uid: str
