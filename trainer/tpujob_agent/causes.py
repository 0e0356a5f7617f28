"""Why generations end, and what pays for it: part of the contract in ``tpujob_agent.protocol``."""

from __future__ import annotations

from tpujob_agent.text import Text


class Cause(Text):
    """Why a generation ended. Every cause has its own budget (see Budget)."""

    PROCESS = "process"  # a trainer was killed or crashed by a signal
    USER_ERROR = "userError"  # a trainer exited non-zero by itself
    HANG = "hang"  # exit code 70, or no progress
    CHECKPOINT = "checkpoint"  # exit code 65
    STORAGE = "storage"  # exit code 74
    PREEMPTION = "preemption"  # SIGTERM reached the pod: deletion, drain, preemption
    MAINTENANCE = "maintenance"  # the same, of a node whose maintenance was announced
    NODE = "node"  # the member fell silent, or its agent came back as another incarnation
    COORDINATOR = "coordinator"
    STRAGGLER = "straggler"  # a host that holds up the others, where the policy is to act
    UNKNOWN = "unknown"  # never sent: whatever a newer coordinator tells besides; has no budget

    @classmethod
    def _missing_(cls, value: object) -> Cause | None:
        return cls.UNKNOWN if isinstance(value, str) else None


class StragglerAction(Text):
    """What is done about a straggler; it is told in any case."""

    REPORT = "Report"
    RESTART = "Restart"  # all trainers, after a save
    REPLACE = "Replace"  # and the straggler's slice is made anew


class Budget(Text):
    """Restart budgets of ``spec.recovery.budgets``."""

    USER_ERROR = "userError"
    PROCESS = "process"
    INFRASTRUCTURE = "infrastructure"
    STRAGGLER = "straggler"
    NO_PROGRESS = "noProgress"


BUDGET_OF_CAUSE: dict[Cause, Budget] = {
    Cause.PROCESS: Budget.PROCESS,
    Cause.USER_ERROR: Budget.USER_ERROR,
    Cause.HANG: Budget.PROCESS,
    Cause.CHECKPOINT: Budget.PROCESS,
    Cause.STORAGE: Budget.INFRASTRUCTURE,
    Cause.PREEMPTION: Budget.INFRASTRUCTURE,
    Cause.MAINTENANCE: Budget.INFRASTRUCTURE,
    Cause.NODE: Budget.INFRASTRUCTURE,
    Cause.COORDINATOR: Budget.INFRASTRUCTURE,
    Cause.STRAGGLER: Budget.STRAGGLER,
}
#: Hosts that were taken away: no sign that a job gets nowhere, however often it happens.
TAKEN_AWAY = frozenset({Cause.PREEMPTION, Cause.MAINTENANCE})
#: Losses that the budget ``noProgress`` does not count. Without its storage no job commits.
NOT_COUNTED = TAKEN_AWAY | {Cause.STORAGE}
