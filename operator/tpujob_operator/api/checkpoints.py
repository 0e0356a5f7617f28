"""``spec.checkpoint``: what a restart goes on from."""

from __future__ import annotations

import enum

from pydantic import ConfigDict, Field

from tpujob_operator.api.base import EMPTY, MAX_COUNT, NEXT_ATTEMPT, Model, immutable, rule, rules

DIRECTORY_PATTERN = "^(/|[a-z][a-z0-9]*://.)"


class IntervalPolicy(enum.StrEnum):
    """How the checkpoint interval is chosen."""

    AUTO = "Auto"
    STEPS = "Steps"
    SECONDS = "Seconds"


class CheckpointInterval(Model):
    """When checkpoints are made."""

    # The API server checks the default {} before it fills in the policy: hence has().
    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "(has(self.policy) && self.policy == 'Steps') == has(self.steps)",
                "interval.steps belongs to policy Steps: give both or neither",
            ),
            rule(
                "(has(self.policy) && self.policy == 'Seconds') == has(self.seconds)",
                "interval.seconds belongs to policy Seconds: give both or neither",
            ),
        )
    )
    policy: IntervalPolicy = Field(
        default=IntervalPolicy.AUTO,
        description="Auto: as often as wastes least, by what saves and failures have cost this "
        "job. Steps: every so many steps. Seconds: every so many seconds.",
    )
    steps: int | None = Field(
        default=None, ge=1, le=MAX_COUNT, description="Steps between checkpoints."
    )
    seconds: int | None = Field(
        default=None, ge=1, le=MAX_COUNT, description="Seconds between checkpoints."
    )


class Checkpoint(Model):
    """Checkpoints: what a restart goes on from."""

    directory: str = Field(
        min_length=1,
        max_length=1024,
        description="Where checkpoints are: gs://bucket/path, s3://bucket/path, or a path on a "
        "volume that all hosts mount. Cannot be changed.",
        json_schema_extra=rules(
            rule(
                f"self.matches('{DIRECTORY_PATTERN}')",
                "checkpoint.directory must be an absolute path or an address like gs://bucket/path",
            ),
            immutable("checkpoint.directory"),
        ),
    )
    interval: CheckpointInterval = Field(
        default_factory=CheckpointInterval,
        description="When checkpoints are made." + NEXT_ATTEMPT,
        json_schema_extra=EMPTY,
    )
    keep: int = Field(
        default=3, ge=2, le=1000, description="How many checkpoints are kept." + NEXT_ATTEMPT
    )
