"""What a cluster cannot give, in words that say what to do."""

from __future__ import annotations


class ClusterError(Exception):
    """The cluster cannot give what was asked for; the message says what to do."""


class NotInstalledError(ClusterError):
    """The cluster knows no TPUTrainingJob."""


class JobNotFoundError(ClusterError):
    """There is no such job, or no longer."""


class JobExistsError(ClusterError):
    """There is a job of this name already."""


class ForbiddenError(ClusterError):
    """The user has not got the right."""


class RefusedError(ClusterError):
    """The API server does not take the object or the change."""


class UnreachableError(ClusterError):
    """The API server does not answer, or not now: it may be worth another try."""


class WaitTimeoutError(ClusterError):
    """What was waited for has not come in time."""


class NothingToReportError(ClusterError):
    """The job has no times yet."""


class NoLogsError(ClusterError):
    """There is no log of what was asked for, or not yet."""
