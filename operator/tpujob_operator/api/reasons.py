"""Reasons of conditions and events: constants, because people and alerts match on them."""

from __future__ import annotations

from typing import Final

# ---- Admitted
ADMITTED: Final = "Admitted"
INVALID_SPEC: Final = "InvalidSpec"

QUEUED: Final = "Queued"  # for quota
EVICTED: Final = "Evicted"  # its quota has been taken back

# ---- Preflight
CHECKING: Final = "Checking"  # and of Admitted, while that is waited for
FITS: Final = "Fits"
DOES_NOT_FIT: Final = "DoesNotFit"  # and of Failed, or of Stalled for a changed spec
NOT_CHECKED: Final = "NotChecked"  # it could not be found out

# ---- Ready, Progressing
CREATED: Final = "Created"  # the objects of an attempt have been applied
WAITING_FOR_PODS: Final = "WaitingForPods"
UNSCHEDULABLE: Final = "Unschedulable"
HOSTS_MISSING: Final = "HostsMissing"
STARTING: Final = "Starting"
TRAINING: Final = "Training"
NOT_TRAINING: Final = "NotTraining"

# ---- Restarting: what is being recovered from, equal to the causes of protocol.Cause
PROCESS_LOST: Final = "ProcessLost"
USER_ERROR: Final = "UserError"
HANG: Final = "Hang"
CHECKPOINT_BAD: Final = "CheckpointBad"
STORAGE_UNAVAILABLE: Final = "StorageUnavailable"
PREEMPTED: Final = "Preempted"
MAINTENANCE: Final = "Maintenance"
STRAGGLER: Final = "Straggler"  # and of Degraded, while one is known
NODE_LOST: Final = "NodeLost"
COORDINATOR_LOST: Final = "CoordinatorLost"
OTHER_LOSS: Final = "OtherLoss"  # its message says which: only a newer release knows it
RECOVERED: Final = "Recovered"
NEW_ATTEMPT: Final = "NewAttempt"
SPEC_CHANGED: Final = "SpecChanged"

# ---- Stalled
JOBSET_MISSING: Final = "JobSetMissing"
IMAGE_UNAVAILABLE: Final = "ImageUnavailable"
CONTAINER_CONFIG: Final = "ContainerConfigError"
CRASH_LOOP: Final = "CrashLoop"
NO_SUCH_NODES: Final = "NoSuchNodes"  # the cluster has no slice of this kind
PODS_REFUSED: Final = "PodsRefused"  # by the API server to the Job controller
REFUSED: Final = "Refused"  # the API server refuses an object of ours (quota, policy, rights)
INTERNAL_ERROR: Final = "InternalError"  # the operator has a defect that shows with this job
JOBSET_SILENT: Final = "JobSetSilent"  # its controller does nothing
ENDED_BEFORE: Final = "EndedBefore"  # an annotation says so; and of Failed
NOT_STALLED: Final = "NotStalled"

# ---- Degraded
COORDINATOR_UNREACHABLE: Final = "CoordinatorUnreachable"  # by the operator
COORDINATOR_REFUSES: Final = "CoordinatorRefuses"  # it does not take the operator's token
KEY_UNKNOWN: Final = "KeyUnknown"  # the attempt was made with a key that the operator lacks
STATUS_REFUSED: Final = "StatusRefused"  # by the API server; the job's history is not stored
SLOWED_DOWN: Final = "SlowedDown"  # all hosts alike
INPUT_BOUND: Final = "InputBound"
SAVE_BOUND: Final = "SaveBound"
BELOW_OBJECTIVE: Final = "GoodputBelowObjective"
LOW_MFU: Final = "LowMFU"
RECOMPILING: Final = "Recompiling"
AS_WANTED: Final = "AsWanted"

# ---- Suspended
SUSPENDED_BY_SPEC: Final = "SuspendedBySpec"
RESUMED: Final = "Resumed"
NOT_SUSPENDED: Final = "NotSuspended"

# ---- Succeeded, Failed
COMPLETED: Final = "Completed"
RUNNING: Final = "Running"
BUDGET_SPENT: Final = "BudgetSpent"
DEADLINE_EXCEEDED: Final = "DeadlineExceeded"
ATTEMPT_FAILED: Final = "AttemptFailed"

# ---- Events only
SLICE_RESTARTED: Final = "SliceRestarted"
HOST_LEAVING: Final = "HostLeaving"  # a node is announced to go
NODE_SUSPECTED: Final = "NodeSuspected"
NODE_GONE: Final = "NodeGone"  # what was left on it is removed by force
EVENTS_SKIPPED: Final = "EventsSkipped"  # of the coordinator: they are malformed
HISTORY_LOST: Final = "HistoryLost"  # status.ledger cannot be read
