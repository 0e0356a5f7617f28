"""What an attempt is made from: a digest for each field of a spec that shapes its pods."""

from __future__ import annotations

import hashlib
import json

from tpujob_operator.api.models import TPUTrainingJob

_SHAPING = {
    "accelerator",
    "topology",
    "slices",
    "spares",
    "provisioning",
    "template",
    "trainer",
    "priority_class_name",
    "queue",
    "queue_topology_label",
}
_DIGEST_CHARACTERS = 12


def digest(value: object) -> str:
    """Digest of a JSON value."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARACTERS]


def shape(job: TPUTrainingJob) -> str:
    """Digests by field, as a JSON object that the attempt's JobSet carries.

    What is at its default is left out, so that a release that adds fields
    changes no digest.
    """
    return json.dumps(_digests(job), sort_keys=True, separators=(",", ":"))


def changed_fields(made_from: str, job: TPUTrainingJob) -> list[str]:
    """Names of the fields in which a job differs from what an attempt was made from.

    None if that cannot be read: no release may restart jobs because it writes another form.
    """
    try:
        before = json.loads(made_from)
    except ValueError:
        return []
    if not isinstance(before, dict):
        return []
    now = _digests(job)
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


def _digests(job: TPUTrainingJob) -> dict[str, str]:
    spec = job.spec.model_dump(
        mode="json", by_alias=True, include=_SHAPING, exclude_defaults=True, exclude_none=True
    )
    if job.spec.recovery.preload is not None:
        spec["recovery.preload"] = job.spec.recovery.preload
    if job.spec.recovery.recreates_pods:
        spec["recovery.pods"] = job.spec.recovery.pods.value
    return {name: digest(value) for name, value in spec.items()}
