"""``spec`` of a TPUTrainingJob: what the user asks for."""

from __future__ import annotations

import enum
from typing import Any

from pydantic import ConfigDict, Field

from tpujob_agent.protocol import StragglerAction
from tpujob_operator.api.base import (
    EMPTY,
    MAKES_ATTEMPT,
    MAX_COUNT,
    NEXT_ATTEMPT,
    Model,
    rule,
    rules,
)
from tpujob_operator.api.checkpoints import Checkpoint
from tpujob_operator.api.podtemplate import (
    TEMPLATE_RULES,
    EnvVars,
    PodTemplate,
    Resources,
    VolumeMounts,
    Volumes,
)
from tpujob_operator.api.provisioning import FLEX_START_RULE, ProvisioningSpec
from tpujob_operator.api.recovery import HANG_FACTOR, HANG_MIN_S, RECREATION_RULES, Recovery
from tpujob_operator.api.slicerules import SLICE_RULES
from tpujob_tpu.catalogue import TOPOLOGY_PATTERN
from tpujob_tpu.generations import GENERATIONS

#: ``4294967295x…`` cannot be a topology: at most three numbers of three digits.
_MAX_TOPOLOGY = 11
MAX_SLICES = 1024
#: The operator compiles it: a longer one could hold up all jobs for seconds.
MAX_PATTERN = 256
QUEUE_PATTERN = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
#: Name of a label of a node, with or without a domain in front.
NODE_LABEL_PATTERN = "^([a-z0-9][-.a-z0-9]*/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?$"
_OPEN: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}

Accelerator = enum.StrEnum("Accelerator", {g.name: g.name for g in GENERATIONS})  # type: ignore[misc] # the catalogue is the source


#: Of a job with a program of its own.
NO_PREFLIGHT = (
    "Compile needs trainer: only the bundled trainer can be compiled without its chips; leave it "
    "out for a program of your own"
)


class Trainer(Model):
    """The bundled trainer."""

    image: str | None = Field(
        default=None, min_length=1, description="Image. Default: the release's trainer image."
    )
    config: dict[str, Any] = Field(
        description="Configuration of the bundled trainer: model, mesh, globalBatch, "
        "sequenceLength, steps, seed, data, optimizer. Checked by the trainer before JAX starts.",
        json_schema_extra=_OPEN,
    )
    env: EnvVars | None = Field(
        default=None, description="Environment variables of the trainer, as in a container."
    )
    resources: Resources | None = Field(
        default=None,
        description="Resource requests and limits of the trainer, as in a container. "
        "The TPU chips of a host are added.",
    )
    volumes: Volumes | None = Field(
        default=None, description="Volumes of the worker pods, as in a pod."
    )
    volume_mounts: VolumeMounts | None = Field(
        default=None,
        description="Volume mounts of the trainer, as in a container.",
    )
    service_account_name: str | None = Field(
        default=None, description="Service account of the worker pods, as for a bucket's access."
    )
    security_context: dict[str, Any] | None = Field(
        default=None,
        description="Security context of the worker pods, such as runAsUser and fsGroup.",
        json_schema_extra=_OPEN,
    )


class Hang(Model):
    """When a trainer counts as hung: all stacks are collected, and it is restarted."""

    min_seconds: int = Field(
        default=HANG_MIN_S,
        ge=1,
        le=86_400,
        description="A step may take this long, whatever the pace of the job." + NEXT_ATTEMPT,
    )
    factor: int = Field(
        default=HANG_FACTOR,
        ge=2,
        le=1000,
        description="A step may take so many median steps." + NEXT_ATTEMPT,
    )


#: Below, every host is one now and then.
STRAGGLER_RATIOS = (1.05, 10.0)


class Straggler(Model):
    """What is done about a host that holds up the others; programs have to tell their times."""

    # A rule, because the API server's messages cut limits to integers.
    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.ratio) || (self.ratio >= {} && self.ratio <= {})".format(
                    *STRAGGLER_RATIOS
                ),
                "health.straggler.ratio must be between {} and {}: hosts differ by a few "
                "percent".format(*STRAGGLER_RATIOS),
            )
        )
    )
    ratio: float = Field(
        default=1.1,
        description="A host is a straggler if it makes steps take so many times as long."
        + NEXT_ATTEMPT,
    )
    action: StragglerAction = Field(
        default=StragglerAction.REPORT,
        description="Report: a condition, an event and status.findings. Restart: all trainers too, "
        "after a save. Replace: the straggler's slice is made anew as well. At most once in 10 "
        "minutes, and never when all hosts are slow." + NEXT_ATTEMPT,
    )


class Health(Model):
    """How the health of a job is judged."""

    hang: Hang = Field(
        default_factory=Hang,
        description="When a trainer counts as hung. Phases before and after training have limits "
        "of their own, from 5 minutes to an hour.",
        json_schema_extra=EMPTY,
    )
    straggler: Straggler = Field(
        default_factory=Straggler,
        description="What is done about a host that holds up the others.",
        json_schema_extra=EMPTY,
    )
    progress_pattern: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_PATTERN,
        description="Regular expression (Python) with a group named step, for programs that do "
        "not report their steps: it is searched in the last 1,024 bytes of each line of output."
        + NEXT_ATTEMPT,
        json_schema_extra=rules(
            rule(
                "self.contains('(?P<step>')",
                "health.progressPattern needs a group named step, as in step=(?P<step>[0-9]+)",
            )
        ),
    )


class Objectives(Model):
    """What the job should reach: the shipped alerts call when it does not."""

    goodput: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Share of time that should be productive. Alerts call when badput spends what "
        "is allowed too fast; without it, none of them does.",
    )
    mfu: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Model FLOPs utilisation that the steps should reach. Default for alerts: 0.5.",
    )


class Elastic(Model):
    """How a job goes on with fewer slices than wanted."""

    min_slices: int = Field(
        ge=1,
        le=MAX_SLICES,
        description="Fewest slices to train on. The global batch stays the same: numbers of slices "
        "among which the bundled trainer cannot share it out are passed over.",
    )
    replacement_timeout_seconds: int = Field(
        default=120,
        ge=0,
        le=86_400,
        description="So long a lost slice is waited for before training goes on with fewer. "
        "When enough slices are back, the job saves and goes on with more.",
    )


class Preflight(enum.StrEnum):
    """What is found out before a job takes chips."""

    NONE = "None"
    COMPILE = "Compile"


class JobSpec(Model):
    """What the user asks for."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            *SLICE_RULES,
            FLEX_START_RULE,
            *RECREATION_RULES,
            rule(
                "has(self.template) != has(self.trainer)",
                "give exactly one of template (your own program) and trainer (the bundled one)",
            ),
            rule(
                "has(self.template) == has(oldSelf.template)",
                "template and trainer cannot be exchanged: delete the job and create a new one",
            ),
            rule(
                "!has(self.trainer) || has(self.checkpoint)",
                "trainer needs checkpoint.directory: without checkpoints a restart begins anew",
            ),
            rule(
                "has(self.checkpoint) == has(oldSelf.checkpoint)",
                "checkpoint cannot be added or removed: delete the job and create a new one",
            ),
            rule(
                "!has(self.elastic) || self.elastic.minSlices <= self.slices",
                "elastic.minSlices must not be above slices: it is the fewest to train on",
            ),
            rule(
                "self.preflight != 'Compile' || has(self.trainer)",
                f"preflight: {NO_PREFLIGHT}",
            ),
            rule(
                f"self.slices + self.spares <= {MAX_SLICES}",
                f"slices and spares together must not be above {MAX_SLICES}",
            ),
            rule(
                "!has(self.queueTopologyLabel) || has(self.queue)",
                "queueTopologyLabel says how Kueue places what waits in a queue: give queue, too, "
                "or neither",
            ),
        )
    )
    accelerator: Accelerator = Field(
        description="TPU generation, not a GKE label. v7 is tpu7x; v2 is not offered by GKE; "
        "v8t and v8i are announced." + MAKES_ATTEMPT,
    )
    topology: str = Field(
        max_length=_MAX_TOPOLOGY,
        description="Shape of each slice in chips, such as 4x4 or 4x4x8. Hosts and chips follow "
        "from it." + MAKES_ATTEMPT,
        json_schema_extra=rules(
            rule(
                f"self.matches('{TOPOLOGY_PATTERN}')",
                "topology must look like 4x4 or 4x4x4: chips in each dimension",
            ),
        ),
    )
    slices: int = Field(
        default=1,
        ge=1,
        le=MAX_SLICES,
        description="Number of slices, which talk to each other over the data centre network."
        + MAKES_ATTEMPT,
    )
    spares: int = Field(
        default=0,
        ge=0,
        le=MAX_SLICES,
        description="Idle slices that take over at once when one is lost." + MAKES_ATTEMPT,
    )
    elastic: Elastic | None = Field(
        default=None,
        description="Going on with fewer slices when one is lost and no spare is left. "
        "Default: the job waits." + NEXT_ATTEMPT,
    )
    provisioning: ProvisioningSpec | None = Field(
        default=None,
        description="How the chips are bought; see docs/provisioning.md. Default: as a "
        "template's node selector says, else any nodes of such slices." + MAKES_ATTEMPT,
    )
    template: PodTemplate | None = Field(
        default=None,
        description="Pod template of a program of your own, kept as it is but for these: the "
        "agent runs the command of the container that trains, which gets the chips of a host; node "
        "selector and tolerations are completed; restartPolicy is the operator's. Exactly one of "
        "template and trainer is given." + MAKES_ATTEMPT,
        json_schema_extra=TEMPLATE_RULES,
    )
    trainer: Trainer | None = Field(
        default=None,
        description="The bundled trainer, instead of a template." + MAKES_ATTEMPT,
    )
    checkpoint: Checkpoint | None = Field(
        default=None, description="Checkpoints. Required with trainer."
    )
    recovery: Recovery = Field(
        default_factory=Recovery, description="How the job recovers.", json_schema_extra=EMPTY
    )
    health: Health = Field(
        default_factory=Health,
        description="How the job's health is judged.",
        json_schema_extra=EMPTY,
    )
    objectives: Objectives | None = Field(
        default=None, description="What the job should reach; see docs/runbook.md."
    )
    queue: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        description="Kueue's LocalQueue, in the job's namespace, that the job waits in for quota. "
        "Default: it does not wait." + MAKES_ATTEMPT,
        json_schema_extra=rules(
            rule(
                f"self.matches('{QUEUE_PATTERN}')",
                "queue must be the name of a LocalQueue: lower-case letters, digits and dashes",
            ),
        ),
    )
    queue_topology_label: str | None = Field(
        default=None,
        max_length=316,
        description="Node label whose value the hosts of a slice share, as a level of the topology "
        "of the queue's flavor: Kueue picks the nodes, a domain for each slice; see docs/kueue.md. "
        "Default: Kueue counts chips, and JobSet finds node pools." + MAKES_ATTEMPT,
        json_schema_extra=rules(
            rule(
                f"self.matches('{NODE_LABEL_PATTERN}')",
                "queueTopologyLabel must be the name of a node label, such as "
                "cloud.google.com/gke-nodepool",
            ),
        ),
    )
    preflight: Preflight = Field(
        default=Preflight.NONE,
        description="Compile: before the job takes chips, the TPU compiler is asked on a CPU "
        "whether the bundled trainer's step fits them. A job that does not fit fails; a changed "
        "spec that does not is not begun. While a job that fits waits, its programs are compiled "
        "beside its checkpoints. Needs a trainer image with libtpu.",
    )
    priority_class_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Priority class of the job's pods." + MAKES_ATTEMPT,
    )
    suspend: bool = Field(
        default=False, description="Whether the job's pods are to be removed for now."
    )
    active_deadline_seconds: int | None = Field(
        default=None,
        ge=1,
        le=MAX_COUNT,
        description="Seconds from the job's creation, suspended and queued time excluded, after "
        "which it fails.",
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None,
        ge=0,
        le=MAX_COUNT,
        description="Seconds after its end when the job is deleted. Default: it is kept.",
    )
