"""Event objects: what ``kubectl describe`` shows of a job's life."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from tpujob_operator.api.base import rfc3339
from tpujob_operator.core.kinds import TPU_TRAINING_JOB
from tpujob_operator.core.plan import Note

_COMPONENT = "tpujob-operator"
_MESSAGE_LIMIT = 1024


def event(job: Mapping[str, Any], note: Note, now_ms: int, instance: str) -> dict[str, Any]:
    """The Event object of a note about a job, as the operator called ``instance`` sends it."""
    at = rfc3339(now_ms)
    digest = hashlib.sha256(f"{note.reason}\n{note.message}".encode()).hexdigest()[:8]
    meta = job["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            # equal for equal events of the same moment, so a retry makes no second one
            "name": f"{meta['name']}.{now_ms:x}.{digest}",
            "namespace": meta["namespace"],
        },
        "involvedObject": {
            "apiVersion": TPU_TRAINING_JOB.api_version,
            "kind": TPU_TRAINING_JOB.kind,
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
        },
        "reason": note.reason,
        "message": note.message[:_MESSAGE_LIMIT],
        "type": note.type,
        "firstTimestamp": at[:19] + "Z",
        "lastTimestamp": at[:19] + "Z",
        "count": 1,
        "source": {"component": _COMPONENT, "host": instance},
        "reportingComponent": _COMPONENT,
        "reportingInstance": instance,
    }
