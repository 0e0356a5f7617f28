"""``spec.recovery``: how a job comes back, and what it may spend on it."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from tpujob_agent.protocol import StragglerAction
from tpujob_operator.api.base import EMPTY, MAKES_ATTEMPT, MAX_COUNT, Model, rule
from tpujob_operator.api.podtemplate import TRAINER_CONTAINER

if TYPE_CHECKING:
    from tpujob_operator.api.spec import JobSpec

#: Defaults of ``spec.health.hang``.
HANG_MIN_S = 60
HANG_FACTOR = 5


class PodRecovery(enum.StrEnum):
    """What is made anew when a program ends that should not."""

    IN_PLACE = "InPlace"  # the process, in its pod
    RECREATE = "Recreate"  # all pods


def _budget(default: int, what: str) -> Any:
    return Field(default=default, ge=-1, le=MAX_COUNT, description=f"{what} -1: no limit.")


class Budgets(Model):
    """Restarts allowed per kind of cause."""

    user_error: int = _budget(3, "Restarts after a program that ended with an error of its own.")
    process: int = _budget(20, "Restarts after a killed, crashed or hung trainer process.")
    infrastructure: int = _budget(-1, "Restarts after lost, drained or preempted hosts.")
    straggler: int = _budget(
        3,
        "Restarts for hosts that hold up the others; when they are spent, those are told only.",
    )
    no_progress: int = _budget(
        5, "Restarts in a row without a newly committed checkpoint, whatever the cause."
    )


class Recovery(Model):
    """How a job recovers."""

    budgets: Budgets = Field(
        default_factory=Budgets,
        description="Restarts allowed per kind of cause; a job whose budget is spent fails. "
        "A change holds from then on; what has been used stays used.",
        json_schema_extra=EMPTY,
    )
    preload: list[str] | None = Field(
        default=None,
        max_length=64,
        description="Python modules the agent imports once; every start of the trainer is a fork "
        "that has them already. Default: jax, flax, optax and orbax.checkpoint where the image "
        "has them; for the bundled trainer what it needs." + MAKES_ATTEMPT,
    )
    pods: PodRecovery = Field(
        default=PodRecovery.IN_PLACE,
        description="InPlace: an agent runs the program, and starts it anew in its pod. Recreate: "
        "for programs that cannot be wrapped; the pods run the command of the template, or the "
        "image's, as it is, and the loss of one makes all of them anew. Nobody tells steps and "
        "checkpoints then, nor finds hangs and stragglers." + MAKES_ATTEMPT,
    )

    @property
    def recreates_pods(self) -> bool:
        """Whether pods run the program as it is, without agent and coordinator."""
        return self.pods is PodRecovery.RECREATE


class _Need(NamedTuple):
    """How CEL and how Python see that a spec can do without the agent, and what to do if not."""

    condition: str
    is_met: Callable[[JobSpec], bool]
    message: str


def _has_defaults(spec: JobSpec) -> bool:
    health = spec.health
    return (
        (health.hang.min_seconds, health.hang.factor) == (HANG_MIN_S, HANG_FACTOR)
        and health.straggler.action is StragglerAction.REPORT
        and health.progress_pattern is None
    )


#: What needs the agent, or makes no sense without it.
_NEEDS_AGENT = (
    _Need(
        condition="has(self.template)",
        is_met=lambda spec: spec.template is not None,
        message="recovery.pods Recreate is for programs in a template: leave it out, the bundled "
        "trainer recovers in its pods",
    ),
    _Need(
        condition="self.spares == 0 && !has(self.elastic)",
        is_met=lambda spec: not spec.spares and spec.elastic is None,
        message="recovery.pods Recreate makes all pods anew, so spares and elastic have no use: "
        "leave them out, or recover InPlace",
    ),
    _Need(
        condition="!has(self.recovery.preload)",
        is_met=lambda spec: spec.recovery.preload is None,
        message="recovery.preload is for the agent, which recovery.pods Recreate does without: "
        "leave it out, or recover InPlace",
    ),
    _Need(
        condition=f"self.health.hang.minSeconds == {HANG_MIN_S}"
        f" && self.health.hang.factor == {HANG_FACTOR}"
        f" && self.health.straggler.action == '{StragglerAction.REPORT}'"
        " && !has(self.health.progressPattern)",
        is_met=_has_defaults,
        message="health.hang, health.straggler.action and health.progressPattern need the agent, "
        "which recovery.pods Recreate does without: leave them out, or recover InPlace",
    ),
)

#: Rules of the whole spec.
RECREATION_RULES = (
    *(
        rule(f"self.recovery.pods != '{PodRecovery.RECREATE}' || ({need.condition})", need.message)
        for need in _NEEDS_AGENT
    ),
    rule(
        f"!has(self.template) || self.recovery.pods == '{PodRecovery.RECREATE}'"
        f" || self.template.spec.containers.all(c, (c.name != '{TRAINER_CONTAINER}'"
        " && size(self.template.spec.containers) > 1) || (has(c.command) && size(c.command) > 0))",
        "the container that trains needs a command: the agent runs it and cannot see "
        "the entrypoint of an image; recovery.pods Recreate does without",
    ),
)


def problems(spec: JobSpec) -> list[str]:
    """What the types cannot express, in the words of the rules."""
    if not spec.recovery.recreates_pods:
        return []
    return [f"spec.{need.message}" for need in _NEEDS_AGENT if not need.is_met(spec)]
