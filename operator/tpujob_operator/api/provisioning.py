"""``spec.provisioning``: how the job's chips are bought."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from tpujob_operator.api.base import Model, rule, rules
from tpujob_tpu.provisioning import (
    BY_LABEL,
    FLEX_START_LABEL,
    FLEX_START_RUN_S,
    MAX_RUN_LABEL,
    NOT_BY_FLEX_START,
    RESERVATION_AFFINITY_LABEL,
    RESERVATION_LABEL,
    RESERVATION_PROJECT_LABEL,
    SPOT_LABEL,
    Provisioning,
)

_NAME = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
_LEAST_RUN_S, _MOST_RUN_S = FLEX_START_RUN_S
_RESERVATION = "provisioning.reservation belongs to model Reserved: give both or neither"
_RUN = (
    "provisioning.maxRunDurationSeconds belongs to model FlexStart: other nodes have no end; "
    "activeDeadlineSeconds ends a job"
)
_NO_FLEX_START = (
    f"provisioning.model FlexStart is not offered for {' and '.join(NOT_BY_FLEX_START)}: "
    "take OnDemand, Spot or Reserved, or a newer accelerator"
)


class Reservation(Model):
    """A reservation of Compute Engine."""

    name: str = Field(
        pattern=_NAME, max_length=63, description="Name of the reservation, without its project."
    )
    project: str | None = Field(
        default=None,
        pattern=_NAME,
        max_length=63,
        description="Project that shares the reservation. Default: that of the cluster.",
    )


class ProvisioningSpec(Model):
    """How the job's chips are bought."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("(self.model == 'Reserved') == has(self.reservation)", _RESERVATION),
            rule("!has(self.maxRunDurationSeconds) || self.model == 'FlexStart'", _RUN),
        )
    )
    model: Provisioning = Field(
        description="OnDemand: until the job ends. Spot: cheaper, and taken away with 30 s notice. "
        "Reserved: from a reservation. FlexStart: queued for, cheaper, for seven days at most.",
    )
    reservation: Reservation | None = Field(
        default=None, description="The reservation. With model Reserved, and only then."
    )
    max_run_duration_seconds: int | None = Field(
        default=None,
        ge=_LEAST_RUN_S,
        le=_MOST_RUN_S,
        description="Run time of a flex-start node; the job saves before its end and goes on with "
        "another node. Default: what the node pool has, seven days at most.",
    )

    @property
    def node_selector(self) -> dict[str, str]:
        """Labels of the nodes that are bought so; on-demand ones have none of their own."""
        if self.model is Provisioning.SPOT:
            return {SPOT_LABEL: "true"}
        if self.model is Provisioning.FLEX_START:
            run_s = self.max_run_duration_seconds
            return {FLEX_START_LABEL: "true"} | ({MAX_RUN_LABEL: str(run_s)} if run_s else {})
        if self.reservation:
            project = self.reservation.project
            return {
                RESERVATION_LABEL: self.reservation.name,
                RESERVATION_AFFINITY_LABEL: "specific",
            } | ({RESERVATION_PROJECT_LABEL: project} if project else {})
        return {}

    @property
    def unwanted_labels(self) -> list[str]:
        """Labels of nodes that are bought in another way."""
        return [label for label, model in BY_LABEL.items() if model is not self.model]


#: Rule of the whole spec.
FLEX_START_RULE = rule(
    "!has(self.provisioning) || self.provisioning.model != 'FlexStart' || "
    f"!(self.accelerator in {list(NOT_BY_FLEX_START)})",
    _NO_FLEX_START,
)


def problems(given: ProvisioningSpec, accelerator: str) -> list[str]:
    """What the types cannot express, in the words of the rules."""
    found = []
    if (given.model is Provisioning.RESERVED) != (given.reservation is not None):
        found.append(_RESERVATION)
    if given.max_run_duration_seconds and given.model is not Provisioning.FLEX_START:
        found.append(_RUN)
    if given.model is Provisioning.FLEX_START and accelerator in NOT_BY_FLEX_START:
        found.append(_NO_FLEX_START)
    return [f"spec.{problem}" for problem in found]
