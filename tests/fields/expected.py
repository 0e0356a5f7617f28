"""What a change of a job that runs must lead to, by the table in docs/recovery.md."""

from __future__ import annotations

import enum
from typing import Any

from localcluster.kubeapi import Object
from tpujob_operator.api.models import InvalidJobError, TPUTrainingJob, parse_job
from tpujob_operator.core.manifests import build
from tpujob_operator.core.manifests.options import ManifestOptions

_OPTIONS = ManifestOptions("key", "operator", "trainer")
_MAKES_ATTEMPT = (
    "accelerator", "topology", "slices", "spares", "provisioning", "template", "trainer", "queue",
    "queueTopologyLabel", "priorityClassName", "recovery.preload", "recovery.pods",
)  # fmt: skip
#: The attempt that runs was made with them, or its coordinator hears of them.
_IN_MANIFESTS = ("checkpoint.interval", "checkpoint.keep", "elastic", "health", "recovery.budgets")
#: Only the operator itself reads them.
_OBEYED = ("activeDeadlineSeconds", "ttlSecondsAfterFinished", "objectives", "preflight")


class Effect(enum.StrEnum):
    """What becomes of a change that the API server has taken."""

    REFUSED = "told in a condition"
    SAME = "means the same"
    SUSPENDED = "suspends"
    ATTEMPT = "makes an attempt"
    LATER = "is in the manifests of the next attempt"
    OBEYED = "is read by the operator"


def effect_of(before: Object, after: Object) -> Effect:
    """The effect of a change, of jobs as the API server has stored them.

    Raises:
        AssertionError: nothing says what this field's change does, or it does nothing.
    """
    try:
        old, new = parse_job(before), parse_job(after)
    except InvalidJobError:
        return Effect.REFUSED
    if old.spec.to_json() == new.spec.to_json():
        return Effect.SAME
    if new.spec.suspend:
        return Effect.SUSPENDED
    if _differ(old, new, _MAKES_ATTEMPT):
        return Effect.ATTEMPT
    if _differ(old, new, _IN_MANIFESTS):
        is_written = _jobset(old) != _jobset(new)
        assert is_written or all(map(_needs_all_slices, (old, new))), "not in the manifests"
        return Effect.LATER if is_written else Effect.SAME
    assert _differ(old, new, _OBEYED), "no effect is known"
    return Effect.OBEYED


def _differ(old: TPUTrainingJob, new: TPUTrainingJob, paths: tuple[str, ...]) -> bool:
    return any(_at(old, path) != _at(new, path) for path in paths)


def _at(job: TPUTrainingJob, path: str) -> Any:
    found: Any = job.spec.to_json()
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _needs_all_slices(job: TPUTrainingJob) -> bool:
    """Whether ``elastic`` says of a job what is so without it."""
    elastic = job.spec.elastic
    return elastic is None or elastic.min_slices == job.spec.slices


def _jobset(job: TPUTrainingJob) -> Object:
    return build(job, attempt=1, options=_OPTIONS)[-1]
