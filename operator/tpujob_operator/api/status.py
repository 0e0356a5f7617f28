"""``status`` of a TPUTrainingJob: what the operator has to say."""

from __future__ import annotations

import enum
from typing import Any

from pydantic import Field

from tpujob_operator.api.base import Model, Timestamp

MAX_INCIDENTS = 20
MAX_FINDINGS = 10


class State(enum.StrEnum):
    """Summary for printing; the conditions rule."""

    PENDING = "Pending"
    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"
    RECOVERING = "Recovering"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ConditionStatus(enum.StrEnum):
    """Value of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Model):
    """A condition, as Kubernetes defines it."""

    type: str = Field(max_length=316, description="Type, in CamelCase.")
    status: ConditionStatus = Field(description="True, False or Unknown.")
    reason: str = Field(min_length=1, max_length=1024, description="Reason, in CamelCase.")
    message: str = Field(
        default="", max_length=32768, description="What happened and what to do about it."
    )
    last_transition_time: Timestamp = Field(description="When status last changed.")
    observed_generation: int | None = Field(
        default=None, ge=0, description="metadata.generation this condition is about."
    )


class Slices(Model):
    """How many slices there are."""

    wanted: int = Field(description="Slices the job trains on.")
    running: int = Field(
        description="Slices with all their hosts ready that train, or will when all are there."
    )
    spare: int = Field(
        default=0, description="Other slices with all their hosts ready: they wait to take over."
    )


class CheckpointStatus(Model):
    """The newest committed checkpoint."""

    step: int = Field(description="Its step.")
    committed_at: Timestamp | None = Field(default=None, description="When it was durable.")
    interval_seconds: float | None = Field(
        default=None,
        description="Seconds between checkpoints, as planned for interval policy Auto.",
    )


class Progress(Model):
    """How far the job is."""

    percent: float | None = Field(default=None, description="Steps done, in percent.")
    eta_seconds: int | None = Field(default=None, description="Seconds to the end at this pace.")
    tokens_per_second: float | None = Field(default=None, description="Tokens trained per second.")
    mfu: float | None = Field(
        default=None,
        description="Model FLOPs utilisation of the recent steps: the model's arithmetic by the "
        "bf16 peak of the chips that train, where the program tells the former.",
    )
    last_loss: float | None = Field(default=None, description="Loss of the last reported step.")


class Goodput(Model):
    """Where the time went; all types and unsettled time add up to wallSeconds exactly."""

    ratio: float | None = Field(
        default=None, description="Productive time, settled or not, divided by wall time."
    )
    predicted_ratio: float | None = Field(
        default=None,
        description="Goodput that the planned checkpoint interval should lead to, by what saves "
        "and failures have cost this job. What is missing to it was lost otherwise.",
    )
    wall_seconds: float | None = Field(default=None, description="Seconds since creation.")
    unsettled_seconds: float | None = Field(
        default=None, description="Seconds of steps that no committed checkpoint covers yet."
    )
    seconds: dict[str, float] | None = Field(default=None, description="Seconds by type of time.")


class Cost(Model):
    """What the chips have cost that the job's pods held, spares included."""

    chip_hours: float | None = Field(default=None, description="Hours of chips held.")
    usd: float | None = Field(
        default=None, description="Their price by the operator's table; absent: not known."
    )
    usd_per_million_tokens: float | None = Field(
        default=None, description="Price of a million tokens that were kept."
    )


class Incident(Model):
    """One fault and its recovery."""

    at: Timestamp = Field(description="When the fault was noticed.")
    cause: str = Field(
        description="process, userError, hang, checkpoint, storage, preemption, maintenance, node, "
        "coordinator or straggler."
    )
    rung: str | None = Field(default=None, description="Rung of the recovery ladder: R0 to R5.")
    slice: int | None = Field(default=None, description="Index of the slice.")
    worker: int | None = Field(default=None, description="Index of the host within its slice.")
    node: str | None = Field(default=None, description="Node it happened on.")
    step: int | None = Field(default=None, description="Last step before the fault.")
    detected_after_seconds: float | None = Field(
        default=None, description="Seconds from the fault to its verdict."
    )
    recovered_after_seconds: float | None = Field(
        default=None, description="Seconds from the fault to the next finished step."
    )
    lost_seconds: float | None = Field(
        default=None, description="Seconds lost: recovery and repeated steps."
    )
    lost_steps: int | None = Field(default=None, description="Steps that were repeated.")
    message: str | None = Field(default=None, description="What happened.")


class FindingStatus(Model):
    """Something about the job's health that holds at present."""

    at: Timestamp = Field(description="When it was found out.")
    kind: str = Field(description="straggler, slowdown, recompiling, inputBound, saveBound.")
    slice: int | None = Field(default=None, description="Index of the slice, if it is one host.")
    worker: int | None = Field(default=None, description="Index of the host within its slice.")
    node: str | None = Field(default=None, description="Node of the host.")
    signal: str | None = Field(
        default=None,
        description="What a straggler shows in: arrival, device or network.",
    )
    ratio: float | None = Field(
        default=None, description="A step takes so many times as long for it."
    )
    message: str = Field(description="What was found out, and where to look.")


class BudgetUse(Model):
    """Use of one restart budget."""

    used: int = Field(description="Restarts charged.")
    limit: int = Field(description="Restarts allowed; -1: no limit.")


class SuspectedNode(Model):
    """A node that the job avoids."""

    name: str = Field(description="Name of the node.")
    reason: str = Field(description="Why it is avoided.")
    until: Timestamp = Field(description="When it is forgiven, if nothing more happens on it.")


class Nodes(Model):
    """What is known of nodes."""

    suspected: list[SuspectedNode] = Field(
        description="Nodes that the next attempt avoids.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class JobStatus(Model):
    """What the operator has to say."""

    observed_generation: int | None = Field(
        default=None, description="metadata.generation the status is about."
    )
    state: State | None = Field(
        default=None, description="Summary for printing; the conditions rule."
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        description="Admitted, Ready, Progressing, Restarting, Degraded, Stalled, Suspended, "
        "Succeeded, Failed; and Preflight where spec.preflight asks for it.",
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    )
    attempt: int | None = Field(default=None, description="Number of the current JobSet.")
    generation: int | None = Field(
        default=None, description="Worlds formed in this attempt: starts of all trainers."
    )
    slices: Slices | None = Field(default=None, description="How many slices there are.")
    hosts: int | None = Field(default=None, description="Hosts of all wanted slices.")
    step: int | None = Field(default=None, description="Last finished step.")
    checkpoint: CheckpointStatus | None = Field(
        default=None, description="The newest committed checkpoint."
    )
    progress: Progress | None = Field(default=None, description="How far the job is.")
    goodput: Goodput | None = Field(default=None, description="Where the time went.")
    cost: Cost | None = Field(default=None, description="What the chips have cost.")
    incidents: list[Incident] = Field(
        default_factory=list,
        max_length=MAX_INCIDENTS,
        description=f"The newest {MAX_INCIDENTS} incidents, oldest first.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    findings: list[FindingStatus] | None = Field(
        default=None,
        max_length=MAX_FINDINGS,
        description="What holds at present about the job's health, oldest first.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    budgets: dict[str, BudgetUse] | None = Field(
        default=None, description="Use of the restart budgets."
    )
    nodes: Nodes | None = Field(default=None, description="What is known of nodes.")
    restarts: int | None = Field(default=None, description="Restarts of the trainers so far.")
    started_at: Timestamp | None = Field(default=None, description="When training first began.")
    finished_at: Timestamp | None = Field(
        default=None, description="When the job succeeded or failed."
    )
    ledger: dict[str, Any] | None = Field(
        default=None,
        description="The operator's own bookkeeping, from which it goes on after a restart. "
        "Not for reading: its form may change in every release.",
        # One owner for the whole, or managedFields would list every key of it.
        json_schema_extra={
            "x-kubernetes-preserve-unknown-fields": True,
            "x-kubernetes-map-type": "atomic",
        },
    )
