"""Jobs in a cluster, from Python.

A job is made, waited for and looked at like this::

    from tpujob_client import Accelerator, Checkpoint, Client, JobSpec, Trainer, new_job

    client = Client.from_kubeconfig()
    spec = JobSpec(
        accelerator=Accelerator("v5e"),
        topology="4x4",
        trainer=Trainer(config={"steps": 1000}),
        checkpoint=Checkpoint(directory="gs://bucket/demo"),
    )
    client.create(new_job("demo", spec))
    job = client.wait("demo", on_change=lambda job: print(job.status.state, job.status.step))
    print(job.outcome, client.report("demo").headline())

The module ``tpujob`` is another: the one that a training script imports to report its progress.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tpujob_client.errors import (
    ClusterError,
    ForbiddenError,
    JobExistsError,
    JobNotFoundError,
    NoLogsError,
    NothingToReportError,
    NotInstalledError,
    RefusedError,
    UnreachableError,
    WaitTimeoutError,
)
from tpujob_client.job import Job, new_job
from tpujob_client.report import Report
from tpujob_operator.api.checkpoints import Checkpoint
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.api.models import InvalidJobError, TPUTrainingJob
from tpujob_operator.api.podtemplate import PodTemplate
from tpujob_operator.api.spec import Accelerator, JobSpec, Trainer
from tpujob_operator.api.status import JobStatus, State

if TYPE_CHECKING:
    from tpujob_client.client import Client
    from tpujob_client.logs import LogLine

__all__ = [
    "Accelerator",
    "Checkpoint",
    "Client",
    "ClusterError",
    "ConditionType",
    "ForbiddenError",
    "InvalidJobError",
    "Job",
    "JobExistsError",
    "JobNotFoundError",
    "JobSpec",
    "JobStatus",
    "LogLine",
    "NoLogsError",
    "NotInstalledError",
    "NothingToReportError",
    "PodTemplate",
    "RefusedError",
    "Report",
    "State",
    "TPUTrainingJob",
    "Trainer",
    "UnreachableError",
    "WaitTimeoutError",
    "new_job",
]

#: What needs Kubernetes' own client, a second of CPU that a key pressed for completion has not got.
_LATE = {"Client": "tpujob_client.client", "LogLine": "tpujob_client.logs"}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATE[name]), name)
