"""Names, labels and owners of the objects a job is made of."""

from __future__ import annotations

from typing import Any, Final

from tpujob_operator.api.base import API_VERSION, KIND
from tpujob_operator.api.models import TPUTrainingJob

FIELD_MANAGER: Final = "tpujob-operator"

MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
JOB_LABEL: Final = "tpujob.dev/job"
ATTEMPT_LABEL: Final = "tpujob.dev/attempt"
ROLE_LABEL: Final = "tpujob.dev/role"
#: Digests of what shapes the pods of an attempt, see ``shape.shape``.
SHAPE_ANNOTATION: Final = "tpujob.dev/shape"
#: Nodes that the worker pods of an attempt keep away from, separated by commas.
AVOIDED_ANNOTATION: Final = "tpujob.dev/avoided-nodes"

#: Which of the operator's keys the token of an attempt is derived from.
KEY_ID_ANNOTATION: Final = "tpujob.dev/key-id"

#: On a job that has ended: how, and its UID. A status can be lost, and the job must not run again.
ENDED_ANNOTATION: Final = "tpujob.dev/ended"

#: Digest of what a preflight checks.
CHECKED_ANNOTATION: Final = "tpujob.dev/checked"

#: Kueue's: the LocalQueue that a JobSet waits in.
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
#: Kueue's: so many pods in a row go to nodes with the same value of this label.
SLICE_TOPOLOGY_ANNOTATION: Final = "kueue.x-k8s.io/podset-slice-required-topology"
SLICE_SIZE_ANNOTATION: Final = "kueue.x-k8s.io/podset-slice-size"

ROLE_WORKER: Final = "worker"
ROLE_COORDINATOR: Final = "coordinator"
ROLE_PREFLIGHT: Final = "preflight"
ROLE_PROGRAMS: Final = "programs"
#: Names of the JobSet's replicated jobs.
COORDINATOR: Final = "coordinator"
SLICE: Final = "slice"

#: Set by JobSet and by the Job controller on pods; pods read their place from them.
SLICE_INDEX_LABEL: Final = "jobset.sigs.k8s.io/job-index"
HOST_INDEX_ANNOTATION: Final = "batch.kubernetes.io/job-completion-index"

#: Characters of a job's UID in names: the first part of it, which is random.
_UID_CHARACTERS: Final = 8


def jobset(job: str, attempt: int) -> str:
    """Name of an attempt's JobSet; a new one each time, because JobSets are immutable."""
    return f"{job}-{attempt}"


def coordinator_job(job: str, attempt: int) -> str:
    """Name of the coordinator's Job."""
    return f"{jobset(job, attempt)}-{COORDINATOR}-0"


def slice_job(job: str, attempt: int, slice_index: int) -> str:
    """Name of the Job of one slice."""
    return f"{jobset(job, attempt)}-{SLICE}-{slice_index}"


def worker_host(job: str, attempt: int, slice_index: int | str, host: int | str) -> str:
    """DNS name of a worker pod within its namespace; JobSet's headless service has its name."""
    return f"{slice_job(job, attempt, 0)[:-1]}{slice_index}-{host}.{jobset(job, attempt)}"


def preflight_job(job: str) -> str:
    """Name of the Job that checks a job before it starts."""
    return f"{job}-preflight"


def programs_job(job: str) -> str:
    """Name of the Job that compiles a job's programs while the job waits."""
    return f"{job}-programs"


def coordinator_service(job: str, uid: str) -> str:
    """Name of the Service of the coordinator; the UID keeps it apart from what others make."""
    return f"{job}-coordinator-{uid[:_UID_CHARACTERS]}"


def token_secret(job: str, uid: str, key_id: str) -> str:
    """Name of the Secret that agents and coordinator of an attempt share.

    It names the job's UID, so that it is nobody else's, and the operator's key, so that another
    key makes another Secret and leaves the one alone that a running attempt reads.
    """
    return f"{job}-token-{uid[:_UID_CHARACTERS]}-{key_id}"


def labels(job: str, attempt: int | None = None, role: str | None = None) -> dict[str, str]:
    """Labels of an object of a job, with those of its attempt and role if it has them."""
    made = {MANAGED_BY_LABEL: FIELD_MANAGER, JOB_LABEL: job}
    if attempt is not None:
        made[ATTEMPT_LABEL] = str(attempt)
    if role is not None:
        made[ROLE_LABEL] = role
    return made


def metadata(job: TPUTrainingJob, name: str, attempt: int | None = None) -> dict[str, Any]:
    """Metadata of an object that belongs to a job and goes when it goes."""
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": labels(job.metadata.name, attempt),
        "ownerReferences": [owner(job)],
    }


def owner(job: TPUTrainingJob) -> dict[str, Any]:
    """The reference that makes the garbage collector delete an object with its job."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
    }
