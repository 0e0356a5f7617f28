"""All objects of an attempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.core.manifests import jobset, secret, service
from tpujob_operator.core.manifests.options import ManifestOptions
from tpujob_operator.core.suspects import Avoided

_NOTHING = Avoided()


def build(
    job: TPUTrainingJob,
    *,
    attempt: int,
    options: ManifestOptions,
    budgets_used: Mapping[str, int] | None = None,
    avoided: Avoided = _NOTHING,
) -> list[dict[str, Any]]:
    """Secret, Service and JobSet: the JobSet needs the two others. Each is created, once.

    A job without agents has a JobSet only. Secret and Service last from attempt to attempt.
    Of a JobSet only ``spec.suspend`` can change.

    Args:
        job: The job; its metadata has name, namespace and uid.
        attempt: Number of the attempt, from 1.
        options: Settings of the operator.
        budgets_used: Restarts that earlier attempts have charged to each budget.
        avoided: Nodes that the worker pods keep away from.
    """
    made = jobset.build(job, attempt, options, budgets_used or {}, avoided)
    if job.spec.recovery.recreates_pods:  # nobody is to be reached
        return [made]
    return [secret.build(job, options), service.build(job), made]
