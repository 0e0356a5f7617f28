"""What the operator itself observes about a job, beside the coordinator's timeline."""

import dataclasses
import enum
from typing import Any

from tpujob_agent.protocol import Event


class FactKind(enum.StrEnum):
    """Kinds of facts that come from Kubernetes."""

    ATTEMPT_STARTED = "attemptStarted"  # attempt
    # ATTEMPT_FAILED: as of a loss, and isCalm: it ran for so long that it counts as progress
    ATTEMPT_FAILED = "attemptFailed"
    ATTEMPT_LEFT = "attemptLeft"  # it is told to save and go: for another spec or other nodes
    #: atMs, pod: which; cause, message: what it was; culprit: worker, node and pod, if another
    LOSS_EXPLAINED = "lossExplained"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    QUEUED = "queued"  # Kueue has not admitted the attempt, or has taken its quota back
    ADMITTED = "admitted"
    CHIPS_HELD = "chipsHeld"  # chips: of all worker pods that have a node
    PODS_BOUND = "podsBound"  # every worker pod has a node
    PODS_UNBOUND = "podsUnbound"
    PODS_RUNNING = "podsRunning"  # generation, hosts: of an attempt without agents, all of them
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True)
class Fact:
    """A fact with the time at which it was observed, milliseconds since the epoch."""

    at_ms: int
    kind: FactKind
    data: dict[str, Any] = dataclasses.field(default_factory=dict)


Observation = Event | Fact
