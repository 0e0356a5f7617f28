"""All metrics of the operator: name, kind, help and labels of each, once.

Times are seconds, and one family's sum over its labels means something. ``namespace`` and
``job`` are on the series of jobs only, which go when their job goes; no label holds a pod, a
step or an attempt.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class MetricKind(enum.StrEnum):
    """Kinds as Prometheus knows them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Family(NamedTuple):
    """One metric. Series of counters end in ``_total``, which the name leaves out."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def series(self) -> str:
        """Name of its series; of a histogram, what they begin with."""
        return f"{self.name}_total" if self.kind is MetricKind.COUNTER else self.name


_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_JOB = ("namespace", "job")


def _of_job(name: str, kind: MetricKind, text: str, *labels: str) -> Family:
    return Family(f"tpujob_{name}", kind, text, (*_JOB, *labels))


def _own(name: str, kind: MetricKind, text: str, *labels: str) -> Family:
    return Family(f"tpujob_operator_{name}", kind, text, labels)


TIME = _of_job(
    "time_seconds",
    _COUNTER,
    "Seconds of a job's life by type; with tpujob_unsettled_seconds they add up to wall time.",
    "type",
)
CHIP_TIME = _of_job(
    "chip_seconds",
    _COUNTER,
    "The same in seconds of chips held, spares included; see tpujob_unsettled_chip_seconds.",
    "type",
)
UNSETTLED = _of_job(
    "unsettled_seconds", _GAUGE, "Seconds of steps that no committed checkpoint covers yet."
)
UNSETTLED_CHIPS = _of_job("unsettled_chip_seconds", _GAUGE, "The same in seconds of chips held.")
GOODPUT = _of_job(
    "goodput_ratio", _GAUGE, "Productive time, settled or not, by wall time, since creation."
)
PREDICTED = _of_job(
    "predicted_goodput_ratio",
    _GAUGE,
    "Goodput that the planned checkpoint interval should lead to.",
)
OBJECTIVE = _of_job(
    "objective_ratio",
    _GAUGE,
    "What spec.objectives asks for: goodput or mfu.",
    "objective",
)
MFU = _of_job("mfu_ratio", _GAUGE, "Model FLOPs utilisation of the newest steps.")
STEP = _of_job("step", _GAUGE, "Last finished step.")
STEP_TIME = _of_job("step_seconds", _GAUGE, "Mean time of the recent steps.")
STEPS = _of_job(
    "steps", _COUNTER, "Steps that a checkpoint covers (settled), and steps lost.", "result"
)
TOKENS = _of_job("tokens", _COUNTER, "Tokens trained, those of steps done again included.")
TOKENS_PER_SECOND = _of_job("tokens_per_second", _GAUGE, "Tokens by time in the recent steps.")
LOSS = _of_job("loss", _GAUGE, "Loss of the last reported step.")
LAST_PROGRESS = _of_job(
    "last_progress_timestamp_seconds", _GAUGE, "When the last step was finished, Unix time."
)
CHECKPOINT_STEP = _of_job("checkpoint_step", _GAUGE, "Step of the newest committed checkpoint.")
CHECKPOINT_AT = _of_job("checkpoint_timestamp_seconds", _GAUGE, "When it was durable, Unix time.")
CHECKPOINT_INTERVAL = _of_job(
    "checkpoint_interval_seconds",
    _GAUGE,
    "Time between checkpoints that interval policy Auto plans.",
)
CHECKPOINT_BLOCKED = _of_job(
    "checkpoint_blocked_seconds", _GAUGE, "How long the newest save held training up."
)
CHECKPOINT_LAG = _of_job(
    "checkpoint_lag_seconds", _GAUGE, "From the beginning of the newest save until it was durable."
)
INCIDENTS = _of_job(
    "incidents",
    _COUNTER,
    "Incidents by cause and by rung of the recovery ladder, each counted when it is over.",
    "cause",
    "rung",
)
OPEN_INCIDENTS = _of_job(
    "open_incidents", _GAUGE, "Incidents from which the job has not recovered yet.", "cause"
)
RECOVERY = _of_job(
    "recovery_duration_seconds",
    _HISTOGRAM,
    "Recoveries by stage; total reaches from the fault to the next finished step.",
    "stage",
)
SKIPPED_EVENTS = _of_job(
    "timeline_events_skipped",
    _COUNTER,
    "Events of the job's coordinator that are malformed and were left out.",
)
BUDGET_USED = _of_job(
    "restart_budget_used_ratio",
    _GAUGE,
    "Share of a limited restart budget that is spent; at 1 the next loss ends the job.",
    "budget",
)
CHIPS = _of_job("chips", _GAUGE, "Chips that the job's pods hold.")
SLICES = _of_job("slices", _GAUGE, "Slices wanted, running and spare.", "kind")
COST = _of_job("cost_usd", _GAUGE, "Cost of the chips held so far by the price table.")
INFO = _of_job(
    "info", _GAUGE, "1, with the job's accelerator, topology and state.",
    "accelerator", "topology", "state",
)  # fmt: skip

#: Metrics of jobs; all of them come from status after a restart of the operator.
OF_JOBS = (
    TIME, CHIP_TIME, UNSETTLED, UNSETTLED_CHIPS, GOODPUT, PREDICTED, OBJECTIVE, MFU,
    STEP, STEP_TIME, STEPS, TOKENS, TOKENS_PER_SECOND, LOSS, LAST_PROGRESS,
    CHECKPOINT_STEP, CHECKPOINT_AT, CHECKPOINT_INTERVAL, CHECKPOINT_BLOCKED, CHECKPOINT_LAG,
    INCIDENTS, OPEN_INCIDENTS, RECOVERY, SKIPPED_EVENTS, BUDGET_USED, CHIPS, SLICES, COST, INFO,
)  # fmt: skip

RECONCILES = _own("reconciles", _COUNTER, "Passes over jobs by result.", "result")
RECONCILE_TIME = _own("reconcile_duration_seconds", _HISTOGRAM, "Duration of passes over jobs.")
API_CALLS = _own(
    "api_calls",
    _COUNTER,
    "Calls of the Kubernetes API by verb, resource and code; code 0: no answer.",
    "verb",
    "resource",
    "code",
)
QUEUE_DEPTH = _own("queue_depth", _GAUGE, "Jobs that wait for a worker.")
QUEUE_AGE = _own(
    "queue_age_seconds", _GAUGE, "Seconds the longest-waiting job has waited for a worker."
)
WATCH_AGE = _own(
    "watch_age_seconds",
    _GAUGE,
    "Seconds since the API server was last heard of the kind that was heard of least.",
)
CRD_LACKS = _own(
    "crd_lacks", _GAUGE, "Fields and words of a job's status that the served CRD does not have."
)
SKIPPED_SAMPLES = _own(
    "samples_skipped", _COUNTER, "Values of jobs that cannot be told as metrics and were left out."
)
SILENT = _own("silent_coordinators", _GAUGE, "Coordinators that run and cannot be read.")
LEADER = _own("leader", _GAUGE, "1 for the replica that holds the Lease and may write, else 0.")

#: Metrics of the operator itself.
OF_OPERATOR = (
    RECONCILES, RECONCILE_TIME, API_CALLS, QUEUE_DEPTH, QUEUE_AGE, WATCH_AGE, SILENT,
    LEADER, CRD_LACKS, SKIPPED_SAMPLES,
)  # fmt: skip
