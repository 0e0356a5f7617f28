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

from tpujob_client.client import Client
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
from tpujob_client.logs import LogLine
from tpujob_client.report import Report
from tpujob_operator.api.checkpoints import Checkpoint
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.api.models import InvalidJobError, TPUTrainingJob
from tpujob_operator.api.podtemplate import PodTemplate
from tpujob_operator.api.spec import Accelerator, JobSpec, Trainer
from tpujob_operator.api.status import JobStatus, State

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
