"""What must be in a cluster for the pods of a job: read off the objects that would be applied."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tpujob_operator.core.kinds import SECRET, Kind

SERVICE_ACCOUNT = Kind("", "v1", "serviceaccounts", "ServiceAccount")
CONFIG_MAP = Kind("", "v1", "configmaps", "ConfigMap")
CLAIM = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
PRIORITY_CLASS = Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass")
#: Those that belong to no namespace.
_CLUSTER_WIDE = (PRIORITY_CLASS,)

Object = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Need:
    """An object that pods name, and do not start without."""

    kind: Kind
    name: str

    def path(self, namespace: str) -> str:
        """Where the API serves it."""
        return self.kind.path(None if self.kind in _CLUSTER_WIDE else namespace, self.name)

    def __str__(self) -> str:
        return f"{self.kind.kind} {self.name}"


def needs_of(objects: Sequence[Object]) -> list[Need]:
    """What the pods of these objects name and the objects are not themselves."""
    own = {(item["kind"], item["metadata"]["name"]) for item in objects}
    named = {need for spec in _pod_specs(objects) for need in _named(spec)}
    return sorted(
        (need for need in named if (need.kind.kind, need.name) not in own),
        key=lambda need: (need.kind.kind, need.name),
    )


def _pod_specs(objects: Sequence[Object]) -> Iterator[Object]:
    for item in objects:
        if item["kind"] == "JobSet":
            for replicated in item["spec"]["replicatedJobs"]:
                yield replicated["template"]["spec"]["template"]["spec"]
        if item["kind"] == "Job":
            yield item["spec"]["template"]["spec"]


def _named(spec: Object) -> Iterator[Need]:
    """What a pod does not start without."""
    if account := spec.get("serviceAccountName"):
        yield Need(SERVICE_ACCOUNT, account)
    if priority := spec.get("priorityClassName"):
        yield Need(PRIORITY_CLASS, priority)
    for volume in spec.get("volumes") or ():
        yield from _of_volume(volume)
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        yield from _of_container(container)


def _of_volume(volume: Object) -> Iterator[Need]:
    if claim := volume.get("persistentVolumeClaim"):
        yield Need(CLAIM, claim["claimName"])
    for source in (volume, *(volume.get("projected") or {}).get("sources", ())):
        if secret := source.get("secret"):
            yield from _required(SECRET, secret, secret.get("secretName") or secret.get("name"))
        if config := source.get("configMap"):
            yield from _required(CONFIG_MAP, config, config.get("name"))


def _of_container(container: Object) -> Iterator[Need]:
    sources = [variable.get("valueFrom") or {} for variable in container.get("env") or ()]
    for source in (*sources, *(container.get("envFrom") or ())):
        for key, kind in (
            ("secretKeyRef", SECRET),
            ("secretRef", SECRET),
            ("configMapKeyRef", CONFIG_MAP),
            ("configMapRef", CONFIG_MAP),
        ):
            if found := source.get(key):
                yield from _required(kind, found, found.get("name"))


def _required(kind: Kind, source: Object, name: str | None) -> Iterator[Need]:
    if name and not source.get("optional"):
        yield Need(kind, name)
