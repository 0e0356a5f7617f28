"""A job as the API server has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tpujob_operator.api.base import API_VERSION, KIND
from tpujob_operator.api.conditions import ConditionType, find_condition, is_true
from tpujob_operator.api.models import Metadata, TPUTrainingJob, parse_job, parse_status
from tpujob_operator.api.spec import JobSpec
from tpujob_operator.api.status import Condition, JobStatus

ENDS = (ConditionType.SUCCEEDED, ConditionType.FAILED)


@dataclasses.dataclass(frozen=True)
class Job:
    """A job at one moment: it does not change when the one in the cluster does."""

    raw: Mapping[str, Any]  # the object as the API server returned it

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.raw["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return str(self.raw["metadata"]["namespace"])

    @property
    def spec(self) -> JobSpec:
        """What its user asked for, with all defaults.

        Raises:
            InvalidJobError: it is of a release that this one does not understand.
        """
        return parse_job(self.raw).spec

    @property
    def status(self) -> JobStatus:
        """What the operator says of it; what this release cannot read counts as absent."""
        return parse_status(self.raw)

    def first_true(self, *kinds: ConditionType) -> Condition | None:
        """The first of these conditions that is True."""
        known = self.status.conditions
        found = (find_condition(known, kind) for kind in kinds if is_true(known, kind))
        return next(found, None)

    @property
    def outcome(self) -> Condition | None:
        """How it ended, ``Succeeded`` or ``Failed``, and why; None: it has not ended."""
        return self.first_true(*ENDS)


def new_job(name: str, spec: JobSpec, **metadata: Any) -> TPUTrainingJob:
    """A job to be created.

    Args:
        name: its name.
        spec: what is asked for.
        metadata: such as ``namespace`` and ``labels``.

    Raises:
        pydantic.ValidationError: pods cannot be named after this name.
    """
    return TPUTrainingJob(metadata=Metadata(name=name, **metadata), spec=spec)


def manifest(job: TPUTrainingJob) -> dict[str, Any]:
    """The object to be sent: what was set, so that defaults stay the cluster's."""
    set_ones: dict[str, Any] = job.model_dump(by_alias=True, exclude_unset=True, mode="json")
    return {**set_ones, "apiVersion": API_VERSION, "kind": KIND}


def event_time(event: Mapping[str, Any]) -> str:
    """When an event was seen last; empty: it does not say."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
