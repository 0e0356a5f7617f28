"""What a new coordinator finds: nothing, a running world, or the remains of one."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from tpujob_agent.protocol import Cause, CoordinatorConfig, ExitCode, ProcessState, Report
from tpujob_coordinator import verdicts
from tpujob_coordinator.ending import end_of_trainer, is_success
from tpujob_coordinator.membership import Member, Place, wanted_hosts
from tpujob_coordinator.verdicts import End, Rank

#: How long a new coordinator waits for all members of a running world to come back.
PATIENCE_MS = 10_000


class Found(enum.Enum):
    """Kinds of findings."""

    UNCLEAR = enum.auto()  # not everybody has come back yet
    NOTHING = enum.auto()
    WORLD = enum.auto()  # whole, and to be left in peace
    REMAINS = enum.auto()  # of a world that lost members meanwhile


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A finding, with the generation and its members that are (or were) in it."""

    found: Found
    generation: int = 0
    places: tuple[Place, ...] = ()
    hosts: int = 0  # that were in it


def look(config: CoordinatorConfig, members: Mapping[Place, Member], *, is_over: bool) -> Finding:
    """Judge by the reports that have come; ``is_over``: no more are waited for."""
    reports = {place: member.report for place, member in members.items() if member.report}
    everybody = (config.slices + config.spares) * config.hosts_per_slice
    is_clear = is_over or len(reports) == everybody
    live = [r.generation for r in reports.values() if r.state is ProcessState.RUNNING]
    done = [r.generation for r in reports.values() if is_success(r)]
    if not live and not done:
        return Finding(Found.NOTHING if is_clear else Found.UNCLEAR)
    generation = max(live or done)
    places = tuple(p for p, r in reports.items() if r.generation == generation and _is_in(r))
    told = [r.num_processes for r in reports.values() if r.generation == generation]
    hosts = max(told) or wanted_hosts(config)
    if len(places) == hosts:
        return Finding(Found.WORLD, generation, places, hosts)
    return Finding(Found.REMAINS if is_clear else Found.UNCLEAR, generation, places, hosts)


def _is_in(report: Report) -> bool:
    return report.state is ProcessState.RUNNING or is_success(report)


def unseen_end(members: Mapping[Place, Member], generation: int, now_ms: int) -> End:
    """What ended a world whose coordinator was away at the time."""
    ends = [
        _unseen_end_of(member, member.report, now_ms)
        for member in members.values()
        if member.report
        and member.report.generation == generation
        and member.report.state is ProcessState.EXITED
        and not is_success(member.report)
    ]
    if ends:
        return verdicts.culprit(ends)
    reason = "a member was lost while the coordinator was away"
    return End(Place(-1, -1), now_ms, Cause.NODE, Rank.CERTAIN, reason)


def _unseen_end_of(member: Member, report: Report, now_ms: int) -> End:
    end = end_of_trainer(member, report, now_ms)
    if report.obeys_saves and report.exit_code == ExitCode.PREEMPTED:
        message = "it has saved and left as the coordinator before this one asked"
        return dataclasses.replace(end, cause=Cause.PREEMPTION, message=message)
    return end
