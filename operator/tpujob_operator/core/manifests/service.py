"""The Service of a job's coordinator."""

from __future__ import annotations

from typing import Any

from tpujob_agent.protocol import AGENT_PORT, HTTP_PORT
from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.core.manifests import names


def build(job: TPUTrainingJob) -> dict[str, Any]:
    """The Service; it selects the coordinator pod of whichever attempt is there.

    There is one at most: an attempt begins when nothing is left of the one before.
    """
    name = job.metadata.name
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": names.metadata(job, names.coordinator_service(name, job.metadata.uid)),
        "spec": {
            "type": "ClusterIP",
            "selector": {
                names.JOB_LABEL: name,
                names.ROLE_LABEL: names.ROLE_COORDINATOR,
            },
            # Agents try again within a second by themselves; to wait for a probe would be slower.
            "publishNotReadyAddresses": True,
            "ports": [_port("agents", AGENT_PORT), _port("http", HTTP_PORT)],
        },
    }


def address(job: TPUTrainingJob) -> str:
    """``host:port`` of the agents' stream."""
    service = names.coordinator_service(job.metadata.name, job.metadata.uid)
    return f"{service}.{job.metadata.namespace}.svc:{AGENT_PORT}"


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}
