"""Where a job's time and money went, from its status alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tpujob_client.errors import NothingToReportError
from tpujob_client.job import Job
from tpujob_operator.api.status import Cost, Goodput, JobStatus
from tpujob_operator.core.grouping import grouped


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What is known of one job."""

    namespace: str
    name: str
    status: JobStatus
    goodput: Goodput

    @classmethod
    def of(cls, job: Job) -> Report:
        """The report of a job.

        Raises:
            NothingToReportError: no operator has looked at the job yet.
        """
        status = job.status
        if status.goodput is None or not status.goodput.seconds:
            raise NothingToReportError(
                f"{job.namespace}/{job.name} has no times in its status yet: does the operator "
                "run? kubectl get pods -A -l app.kubernetes.io/name=tpujob-operator"
            )
        return cls(job.namespace, job.name, status, status.goodput)

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds by type."""
        return self.goodput.seconds or {}

    @property
    def wall_s(self) -> float:
        """Seconds since the job was created, or until its end."""
        return self.goodput.wall_seconds or 0.0

    @property
    def unsettled_s(self) -> float:
        """Seconds of steps that no checkpoint covers yet."""
        return self.goodput.unsettled_seconds or 0.0

    def incidents(self) -> list[dict[str, Any]]:
        """The newest incidents as they are in the API."""
        return [incident.to_json() for incident in self.status.incidents]

    def headline(self) -> str:
        """The most important in a line or two."""
        state = self.status.state.value if self.status.state else "without a state"
        words = [
            f"{self.namespace}/{self.name}: {state}, step {self.status.step or 0}",
            f"goodput {100 * (self.goodput.ratio or 0):.1f} %",
            f"restarts {self.status.restarts or 0}",
        ]
        return ", ".join(words) + _money(self.status.cost)

    def to_json(self) -> dict[str, Any]:
        """All of it as a JSON object."""
        return {
            "namespace": self.namespace,
            "name": self.name,
            "state": self.status.state.value if self.status.state else None,
            "step": self.status.step,
            "restarts": self.status.restarts,
            "goodput": self.goodput.to_json(),
            "googleKinds": {
                kind.value: round(amount, 3)
                for kind, amount in grouped(self.seconds, self.unsettled_s).items()
            },
            "cost": self.status.cost.to_json() if self.status.cost else None,
            "incidents": self.incidents(),
        }


def _money(cost: Cost | None) -> str:
    if cost is None or not cost.chip_hours:
        return ""
    words = f"\n{cost.chip_hours:,.1f} chip-hours"
    if cost.usd is not None:
        words += f", ${cost.usd:,.2f}"
    if cost.usd_per_million_tokens is not None:
        words += f", ${cost.usd_per_million_tokens:,.4f} a million tokens"
    return words
