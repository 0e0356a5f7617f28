"""What a user does and sees in one namespace of a cluster, whichever cluster it is."""

from __future__ import annotations

from typing import Any

from localcluster.kubeapi import Api, ApiError, Object
from tpujob_operator.core.kinds import TPU_TRAINING_JOB, Kind


class Namespaced:
    """The objects of one namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api = api
        self.namespace = namespace

    def submit(self, body: Object) -> Object:
        """Create a job.

        Raises:
            ApiError: the API server refuses it.
        """
        created: Object = self.api.request("POST", TPU_TRAINING_JOB.path(self.namespace), body)
        return created

    def change(self, name: str, **spec: Any) -> None:
        """Merge into a job's spec."""
        self.api.merge(TPU_TRAINING_JOB.path(self.namespace, name), {"spec": spec})

    def delete(self, kind: Kind, name: str, **options: Any) -> None:
        """Delete an object."""
        self.api.request("DELETE", kind.path(self.namespace, name), options or None)

    def all(self, kind: Kind, job: str = "") -> list[Object]:
        """All objects of a kind, or those of one job."""
        query = f"?labelSelector=tpujob.dev/job={job}" if job else ""
        items: list[Object] = self.api.get(kind.path(self.namespace) + query)["items"]
        return items

    def find(self, kind: Kind, name: str) -> Object | None:
        """An object, or nothing."""
        try:
            found: Object = self.api.get(kind.path(self.namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return found

    def status(self, name: str) -> Object:
        """Status of a job; empty before there is one."""
        job = self.find(TPU_TRAINING_JOB, name) or {}
        status: Object = job.get("status", {})
        return status

    def condition(self, name: str, kind: str) -> Object:
        """A condition of a job; empty: not there."""
        conditions = self.status(name).get("conditions", [])
        return next((item for item in conditions if item["type"] == kind), {})
