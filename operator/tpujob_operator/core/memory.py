"""What the operator remembers of its own deeds, kept in ``status.ledger`` beside the history."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tpujob_operator.core import checks, suspects
from tpujob_operator.core.checks import Check
from tpujob_operator.core.stored import items, known_fields, table, whole
from tpujob_operator.core.suspects import Suspect

#: A slice that was replaced once is replaced at once; again within this time, with a delay.
CALM_MS = 10 * 60 * 1000
_FIRST_DELAY_MS = 1_000
_LONGEST_DELAY_MS = 60_000


def remaining_ms(until_ms: int, now_ms: int, longest_ms: int) -> int:
    """What is left of a delay that ends at ``until_ms`` and was never longer than ``longest_ms``.

    If more seems to be left, the clock was set back meanwhile, and the delay counts as over.
    """
    left_ms = until_ms - now_ms
    return left_ms if 0 < left_ms <= longest_ms else 0


@dataclasses.dataclass(frozen=True, slots=True)
class Replacements:
    """How often a Job was deleted because a pod of it was lost, and when the last time."""

    count: int = 0
    last_ms: int = 0

    def another(self, now_ms: int) -> Replacements:
        """One more, at ``now_ms``; after a calm time counting starts anew."""
        count = self.count if now_ms - self.last_ms < CALM_MS else 0
        return Replacements(count + 1, now_ms)

    def wait_ms(self, now_ms: int) -> int:
        """Time until the next one may come: at once, then 1, 2, 4 … 60 s after the last."""
        if not self.count:
            return 0
        delay_ms = min(_LONGEST_DELAY_MS, _FIRST_DELAY_MS << min(max(self.count - 1, 0), 10))
        return remaining_ms(self.last_ms + delay_ms, now_ms, delay_ms)


@dataclasses.dataclass(frozen=True, slots=True)
class LostPod:
    """The one pod for whose sake a slice was made anew: its other pods had to go with it."""

    at_ms: int
    slice: int
    host: int
    node: str
    pod: str


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """State of the policies that Kubernetes does not hold for them."""

    replacements: Mapping[str, Replacements] = dataclasses.field(default_factory=dict)
    lost_pods: tuple[LostPod, ...] = ()  # whose incident has not been told yet
    attempts_without_commit: int = 0
    committed_at_attempt: int = 0  # checkpoint step when the attempt began
    next_attempt_ms: int = 0
    dead_nodes: tuple[Suspect, ...] = ()  # on which pods were deleted by force
    forgiven_ms: int = 0  # incidents before make no node suspect
    low_mfu_since_ms: int = 0  # 0: it is not low
    ends_since_ms: int = 0  # of pods of an attempt without agents; 0: none has ended
    jobless_since_ms: int = 0  # since when the attempt's JobSet has no Job; 0: it has some
    checks: tuple[Check, ...] = ()  # by preflights, the newest last

    def replaced(self, name: str, now_ms: int) -> Memory:
        """The memory after the Job called ``name`` was deleted for a lost pod."""
        count = self.replacements.get(name, Replacements()).another(now_ms)
        return dataclasses.replace(self, replacements={**self.replacements, name: count})

    def lost(self, pod: LostPod) -> Memory:
        """The memory after one pod alone broke its slice."""
        others = (known for known in self.lost_pods if known.slice != pod.slice)
        return dataclasses.replace(self, lost_pods=(*others, pod))

    def despite_refusal(self, decided: Memory) -> Memory:
        """The memory after the status of a decision was refused, and lost slices replaced anyway.

        Whatever cannot be written down is decided again, but a slice that dies at once must not
        be replaced without a wait meanwhile.
        """
        return dataclasses.replace(self, replacements=decided.replacements)

    def of_next_attempt(self, committed_step: int) -> Memory:
        """What is still worth knowing when an attempt makes way for another one."""
        return Memory(
            committed_at_attempt=committed_step,
            dead_nodes=self.dead_nodes,
            forgiven_ms=self.forgiven_ms,
            checks=self.checks,
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which ``from_json`` makes an equal memory."""
        return {
            "replacements": {
                name: [item.count, item.last_ms] for name, item in sorted(self.replacements.items())
            },
            "lostPods": [dataclasses.asdict(pod) for pod in self.lost_pods],
            "attemptsWithoutCommit": self.attempts_without_commit,
            "committedAtAttempt": self.committed_at_attempt,
            "nextAttemptMs": self.next_attempt_ms,
            "deadNodes": suspects.to_json(self.dead_nodes),
            "forgivenMs": self.forgiven_ms,
            "lowMfuSinceMs": self.low_mfu_since_ms,
            "endsSinceMs": self.ends_since_ms,
            "joblessSinceMs": self.jobless_since_ms,
            "checks": [dataclasses.asdict(check) for check in self.checks],
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Memory:
        """Inverse of ``to_json``; what is missing takes its default.

        Raises:
            ValueError: the state is damaged.
        """
        try:
            return cls._from_json(raw)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"status.ledger.operator is damaged: {error!r}") from error

    @classmethod
    def _from_json(cls, raw: Mapping[str, Any]) -> Memory:
        return cls(
            replacements={
                name: Replacements(*map(whole, items(values)))
                for name, values in table(raw.get("replacements", {})).items()
            },
            lost_pods=tuple(
                LostPod(**known_fields(LostPod, pod)) for pod in items(raw.get("lostPods", []))
            ),
            attempts_without_commit=whole(raw.get("attemptsWithoutCommit", 0)),
            committed_at_attempt=whole(raw.get("committedAtAttempt", 0)),
            next_attempt_ms=whole(raw.get("nextAttemptMs", 0)),
            dead_nodes=suspects.from_json(raw.get("deadNodes", [])),
            forgiven_ms=whole(raw.get("forgivenMs", 0)),
            low_mfu_since_ms=whole(raw.get("lowMfuSinceMs", 0)),
            ends_since_ms=whole(raw.get("endsSinceMs", 0)),
            jobless_since_ms=whole(raw.get("joblessSinceMs", 0)),
            checks=checks.from_json(raw.get("checks", [])),
        )
