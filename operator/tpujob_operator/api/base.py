"""What all models of the API share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

GROUP = "tpujob.dev"
VERSION = "v1alpha1"
API_VERSION: Final = "tpujob.dev/v1alpha1"
KIND: Final = "TPUTrainingJob"
PLURAL = "tputrainingjobs"

#: Numeric and boolean limits are generous; they exist so that the cost of CEL rules is bounded.
MAX_CONTAINERS = 32
MAX_ENV = 256
MAX_VOLUMES = 128

#: Of what a user counts, in steps or seconds: 30 years of seconds, which stay within any calendar.
MAX_COUNT = 1_000_000_000

#: RFC 3339 in UTC with milliseconds, such as ``2026-11-21T08:00:00.123Z``.
Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"})]

_LATEST_MS = 253_402_300_799_999  # the end of the year 9999

#: Of a field whose own fields have defaults.
EMPTY: dict[str, Any] = {"default": {}}
MAKES_ATTEMPT = " A change makes a new attempt, which resumes from a checkpoint made before."
NEXT_ATTEMPT = " A change takes effect at the next attempt."


class Model(BaseModel):
    """An immutable object with camelCase keys.

    Unknown keys are ignored: the API server has pruned them already, and an
    operator must be able to read jobs of a newer release. ``parse_job`` can be
    told to refuse them.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore"
    )

    def to_json(self) -> dict[str, Any]:
        """The object with camelCase keys, without keys that have no value."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")


class OpenModel(Model):
    """Part of a Kubernetes object: keys that are not ours pass through untouched."""

    model_config = ConfigDict(extra="allow")

    def to_json(self) -> dict[str, Any]:
        """Exactly what was given, nothing added."""
        return self.model_dump(by_alias=True, exclude_unset=True, mode="json")


def rule(expression: str, message: str, *, message_expression: str = "") -> dict[str, str]:
    """One CEL rule; ``message`` also serves if ``message_expression`` fails."""
    made = {"rule": expression, "message": message}
    if message_expression:
        made["messageExpression"] = message_expression
    return made


def rules(*validations: dict[str, str], **more: Any) -> dict[str, Any]:
    """Schema extensions that hold CEL rules."""
    return {"x-kubernetes-validations": list(validations), **more}


def immutable(what: str) -> dict[str, str]:
    """A rule that refuses changes of a field."""
    return rule("self == oldSelf", f"{what} cannot be changed: delete the job and create a new one")


def rfc3339(at_ms: int) -> str:
    """Milliseconds since the epoch as a ``Timestamp``; the nearest one for times that have none."""
    at_ms = min(max(0, at_ms), _LATEST_MS)
    moment = datetime.fromtimestamp(at_ms / 1000, tz=UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03d}Z"


def parse_rfc3339(text: str) -> int:
    """Inverse of ``rfc3339``; also reads what Kubernetes writes. Milliseconds since the epoch.

    Raises:
        ValueError: not a time with a zone.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time without a zone: {text}")
    return round(moment.timestamp() * 1000)
