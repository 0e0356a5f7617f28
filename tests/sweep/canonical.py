"""What is compared: the objects of a namespace without what differs from run to run anyway."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from localcluster.kubeapi import Object
from tests.sweep.census import Population

#: Names, times and counters that the API server hands out, and what is derived from them.
_DRAWN = frozenset(
    {
        "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "managedFields",
        "generation", "selfLink", "clusterIP", "clusterIPs", "deletionGracePeriodSeconds",
        "startTime", "completionTime", "lastTransitionTime", "lastProbeTime",
        "uncountedTerminatedPods", "token",
    }
)  # fmt: skip
#: Parts of a job's status that measure time, or remember when things were.
_MEASURED = frozenset({"ledger", "goodput", "cost", "etaSeconds"})
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_NUMBER_OF_SECONDS = re.compile(r"\d+(\.\d+)? ?s\b")
_HASH = re.compile(r"\b[0-9a-f]{32,64}\b")
_POD = re.compile(r"\b(\S+-(?:slice|coordinator)-\d+-\d+)-[a-z0-9]{5}\b")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
#: The status of what others own tells when it was looked at, more than what there is.
_WITH_STATUS = frozenset({"tputrainingjobs"})

#: No coordinator runs in these pods; a job that takes longer than a minute says so.
_UNREACHABLE = "CoordinatorUnreachable"
_WANTED = {
    "type": "Degraded",
    "status": "False",
    "reason": "AsWanted",
    "message": "The job has all the hosts it wants.",
}

State = dict[str, Any]


def state_of(population: Population, namespace: str) -> State:
    """All objects, flat: a value for each path."""
    roles = _roles(population)

    def scrub(text: str) -> str:
        text = _UID.sub(lambda found: roles.get(found[0], "<uid>"), text)
        text = population.names.of("", text).replace(namespace, "<namespace>")
        text = _TIME.sub("<time>", _HASH.sub("<hash>", _POD.sub(r"\1", text)))
        return _NUMBER_OF_SECONDS.sub("<s>", text)

    state: State = {}
    for (resource, name), obj in list(population.objects.items()):
        label = f"{resource}/{population.names.of(resource, name)}"
        label = label if f"{label}:exists" not in state else f"{label}(another)"
        state[f"{label}:exists"] = True
        for path, value in _leaves(_told(resource, obj)):
            state[f"{label}:{path}"] = scrub(value) if isinstance(value, str) else value
    return state


def imbalance(population: Population) -> list[str]:
    """Jobs whose types of time do not sum up to the time since they were created."""
    found = []
    for (resource, name), obj in list(population.objects.items()):
        goodput = (obj.get("status") or {}).get("goodput") if resource == "tputrainingjobs" else {}
        if not goodput:
            continue
        gap = sum(goodput["seconds"].values()) - goodput["wallSeconds"]
        if abs(gap) > 0.001:
            found.append(f"{name}: the types of time sum up to {gap:+.3f} s beside the wall time")
    return found


def _roles(population: Population) -> dict[str, str]:
    roles = {}
    for (resource, name), obj in list(population.objects.items()):
        canonical = population.names.of(resource, name)
        roles[obj["metadata"]["uid"]] = f"<uid of {resource}/{canonical}>"
    return roles


def _told(resource: str, obj: Object) -> Object:
    told = dict(obj)
    if resource == "pods":
        status = obj.get("status", {})
        spec = {"nodeName": obj["spec"].get("nodeName", "")}
        told = {"metadata": obj["metadata"], "spec": spec, "status": {"phase": status.get("phase")}}
    elif resource not in _WITH_STATUS:
        told.pop("status", None)
    elif conditions := (obj.get("status") or {}).get("conditions"):
        calm = [
            {**item, **_WANTED} if item.get("reason") == _UNREACHABLE else item
            for item in conditions
        ]
        told["status"] = {**obj["status"], "conditions": calm}
    return told


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in _DRAWN or (path == ".status" and name in _MEASURED):
                continue
            if name.endswith("Seconds") and path.startswith(".status"):
                continue
            yield from _leaves(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            label = (
                inner.get("type", inner.get("name", index)) if isinstance(inner, dict) else index
            )
            yield from _leaves(inner, f"{path}[{label}]")
    else:
        yield path, value
