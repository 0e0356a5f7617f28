"""The coordinator's state as people and the command line see it."""

from __future__ import annotations

from typing import Any

from tpujob_coordinator.core import Core
from tpujob_coordinator.membership import Member


def state_of(core: Core) -> dict[str, Any]:
    """A JSON object: stage, world, members, budgets."""
    world = core.world
    return {
        "namespace": core.config.namespace,
        "job": core.config.job,
        "attempt": core.config.attempt,
        "epoch": core.timeline.epoch,
        "stage": core.stage.value,
        "generation": world.generation if world else 0,
        "leader": world.leader if world else "",
        "step": core.step,
        "committedStep": core.committed_step,
        "backoffUntilMs": core.backoff_until_ms,
        "budgetsUsed": dict(core.budgets.used),
        "members": [_member(core.members[place]) for place in sorted(core.members)],
    }


def _member(member: Member) -> dict[str, Any]:
    hello, report = member.hello, member.report
    return {
        "slice": hello.slice,
        "host": hello.host,
        "pod": hello.pod,
        "node": hello.node,
        "ip": hello.ip,
        "connected": member.connection is not None,
        "leaving": member.is_leaving,
        "notice": member.notice.reason if member.notice else "",
        "lastSeenMs": member.last_seen_ms,
        "state": report.state.value if report else None,
        "generation": report.generation if report else 0,
        "phase": report.phase.value if report else None,
        "step": report.step if report else 0,
    }
