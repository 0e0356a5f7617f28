"""What the API server and the controllers make of objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tpujob_operator.core.kinds import JOB, POD, Kind

Object = dict[str, Any]


def merge(old: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
    """What a merge patch makes of an object (RFC 7396)."""
    made = {name: value for name, value in old.items() if patch.get(name, value) is not None}
    for name, value in patch.items():
        if isinstance(value, Mapping):
            before = made.get(name)
            made[name] = merge(before if isinstance(before, Mapping) else {}, value)
        elif value is not None:
            made[name] = json.loads(json.dumps(value))
    return made


def owner_of(obj: Mapping[str, Any]) -> str:
    """UID of an object's owner."""
    return str(obj["metadata"]["ownerReferences"][0]["uid"])


def has_failed(obj: Mapping[str, Any]) -> bool:
    """Whether a Job or JobSet has failed."""
    conditions = obj.get("status", {}).get("conditions", ())
    return any(item["type"] == "Failed" for item in conditions)


def _owned(owner: Object, kind: Kind, name: str, labels: Mapping[str, str]) -> Object:
    reference = {"uid": owner["metadata"]["uid"], "controller": True}
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": name,
            "namespace": "ns",
            "labels": dict(labels),
            "ownerReferences": [reference],
        },
        "spec": {},
    }


def make_job(jobset: Object, replicated: Mapping[str, Any], name: str, index: int) -> Object:
    """A Job of a JobSet."""
    labels = {
        **replicated["template"]["metadata"]["labels"],
        "jobset.sigs.k8s.io/replicatedjob-name": replicated["name"],
        "jobset.sigs.k8s.io/job-index": str(index),
    }
    made = _owned(jobset, JOB, name, labels)
    made["spec"]["suspend"] = jobset["spec"]["suspend"]
    return made


def make_pod(job: Object, number: int) -> Object:
    """A pod of a Job, without a node."""
    made = _owned(job, POD, f"{job['metadata']['name']}-0-{number}", job["metadata"]["labels"])
    made["status"] = {"phase": "Pending"}
    return made
