"""What Kueue says of a JobSet that waits for quota: the words of its Workload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpujob_operator.core.kinds import WORKLOADS
from tpujob_operator.shell.client import ApiError, Client

_JOB_UID_LABEL = "kueue.x-k8s.io/job-uid"
_NOT_INSTALLED = (
    "nothing, as the API server does not know workloads.kueue.x-k8s.io. Install Kueue with its "
    "integration of JobSet, or remove spec.queue"
)
_NOT_SEEN = "nothing yet: it has made no Workload of the JobSet"


async def words_of(client: Client, namespace: str, jobset_uid: str) -> str:
    """Why Kueue has not admitted a JobSet; in words of ours where there are none of Kueue's."""
    for kind in WORKLOADS:
        try:
            found, _ = await client.list(kind, namespace, f"{_JOB_UID_LABEL}={jobset_uid}")
        except ApiError as error:
            if error.is_not_found:
                continue
            return f"what the operator could not read ({error.message})"
        return _words(found[0]) if found else _NOT_SEEN
    return _NOT_INSTALLED


def _words(workload: Mapping[str, Any]) -> str:
    conditions = workload.get("status", {}).get("conditions") or ()
    said = {item["type"]: item for item in conditions}
    reserved = said.get("QuotaReserved")
    if reserved is None or reserved["status"] == "True":
        return "nothing yet"
    return str(reserved.get("message") or reserved.get("reason") or "nothing yet")
