"""What Kueue says of a JobSet that waits for quota: the words of its Workload."""

from __future__ import annotations

from tpujob_operator.core.kinds import WORKLOADS
from tpujob_operator.core.quota import Wait, wait_of
from tpujob_operator.shell.client import ApiError, Client

_JOB_UID_LABEL = "kueue.x-k8s.io/job-uid"
_NOT_INSTALLED = (
    "nothing, as the API server does not know workloads.kueue.x-k8s.io. Install Kueue with its "
    "integration of JobSet, or remove spec.queue"
)
_NOT_SEEN = "nothing yet: it has made no Workload of the JobSet"


async def wait_for_quota(client: Client, namespace: str, jobset_uid: str) -> Wait:
    """Why Kueue has not admitted a JobSet; in words of ours where there are none of Kueue's."""
    for kind in WORKLOADS:
        try:
            found, _ = await client.list(kind, namespace, f"{_JOB_UID_LABEL}={jobset_uid}")
        except ApiError as error:
            if error.is_not_found:
                continue
            return Wait(f"what the operator could not read ({error.message})")
        return wait_of(found[0]) if found else Wait(_NOT_SEEN)
    return Wait(_NOT_INSTALLED)
