"""An agent in simulated time, and what it and its coordinator are told."""

from __future__ import annotations

import dataclasses

from tpujob_agent.protocol import CoordinatorConfig, ProcessState, Report
from tpujob_coordinator.membership import Place
from tpujob_operator.sim.scenario import Scenario
from tpujob_operator.sim.training import Saving

_NO_LIMITS = dict.fromkeys(("userError", "process", "infrastructure", "noProgress"), -1)


@dataclasses.dataclass(slots=True)
class Agent:
    """One agent; where a slice has a single one, it stands for all of its hosts."""

    number: int
    place: Place
    connection: int = 0  # 0: not there
    report: Report | None = None
    is_dead: bool = False  # fallen silent
    is_leaving: bool = False

    @property
    def is_running(self) -> bool:
        """Whether it has a process."""
        return self.report is not None and self.report.state is ProcessState.RUNNING


def config_of(scenario: Scenario) -> CoordinatorConfig:
    """What the operator would tell the coordinator of such a job."""
    features = scenario.features
    return CoordinatorConfig(
        "sim",
        scenario.name,
        1,
        scenario.slices,
        features.spares,
        scenario.agents_per_slice,
        _NO_LIMITS,
        smaller_worlds=list(range(1, scenario.slices)) if features.elastic else [],
        replacement_timeout_ms=features.replacement_timeout_s * 1000,
        chips=scenario.chips,
        plans_interval=features.auto_interval,
    )


def cost_of(committed: Saving) -> dict[str, object]:
    """Fields of a report after a save."""
    return {
        "committed_step": committed.step,
        "committed_at_ms": committed.durable_at_ms,
        "commit_blocked_ms": committed.blocked_ms,
        "commit_lag_ms": committed.lag_ms,
    }


def idle_word(agent: Agent, now_ms: int) -> Report:
    """What an agent says that has nothing new."""
    report = agent.report or Report(now_ms, ProcessState.IDLE, 0)
    return dataclasses.replace(report, sent_at_ms=now_ms)
