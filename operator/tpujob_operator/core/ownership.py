"""Which job an object belongs to: labels can be copied, controllers are not by accident.

A debug pod with the labels of a worker, or a JobSet made from a copied manifest, is none of the
operator's business: it neither holds up an attempt nor is deleted for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpujob_operator.core.kinds import JOB, JOB_SET, POD, TPU_TRAINING_JOB, Kind
from tpujob_operator.core.manifests import names

_ASIDE = (names.preflight_job, names.programs_job)


def owning_job(kind: Kind, meta: Mapping[str, Any]) -> str:
    """Name of the job that a JobSet, Job or pod belongs to, by its labels and its controller.

    It may be an earlier job of that name, or an earlier attempt. Empty: it belongs to none.
    """
    labels = meta.get("labels") or {}
    job = str(labels.get(names.JOB_LABEL) or "")
    owner = controller_of(meta)
    if not job or owner is None:
        return ""
    attempt = str(labels.get(names.ATTEMPT_LABEL) or "")
    jobset = f"{job}-{attempt}" if attempt.isdigit() else ""
    return job if _is_link(kind, owner, job, jobset) else ""


def controller_of(meta: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The reference to the controller of an object, or nothing."""
    owners = meta.get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def _is_link(kind: Kind, owner: Mapping[str, Any], job: str, jobset: str) -> bool:
    """Whether a kind's controller is what it is in the chain job, JobSet, Job, pod."""
    name = str(owner.get("name", ""))
    if kind is JOB_SET:
        return _is_a(TPU_TRAINING_JOB, owner) and name == job
    if kind is JOB:
        is_aside = _is_a(TPU_TRAINING_JOB, owner) and name == job
        return is_aside or (_is_a(JOB_SET, owner) and name == jobset != "")
    if kind is POD:
        is_aside = name in [name_of(job) for name_of in _ASIDE]
        is_of_attempt = bool(jobset) and name.startswith(f"{jobset}-")
        return _is_a(JOB, owner) and (is_aside or is_of_attempt)
    return False


def _is_a(kind: Kind, owner: Mapping[str, Any]) -> bool:
    group = str(owner.get("apiVersion", "")).rpartition("/")[0]
    return owner.get("kind") == kind.kind and group == kind.group
