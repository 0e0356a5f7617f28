"""The coordinator's state machine: messages and time in, messages and timeline out.

It knows no socket and no clock. A world ("generation") is formed when enough whole
slices are idle; any loss ends it; the next one is formed when every process of the
old one is gone. At no time are two generations running.
"""

from __future__ import annotations

from typing import Any

from tpujob_agent.protocol import (
    Cause,
    CoordinatorConfig,
    EventKind,
    ExitCode,
    Finish,
    Hello,
    Leaving,
    Message,
    ProcessState,
    Refused,
    Report,
    Stacks,
    Stop,
)
from tpujob_coordinator import adoption, farewell, membership
from tpujob_coordinator.adoption import Finding, Found
from tpujob_coordinator.budgets import Budgets, Verdict
from tpujob_coordinator.ending import Ending, end_of_member, end_of_trainer, is_success
from tpujob_coordinator.farewell import Farewell
from tpujob_coordinator.hangs import Inquiry
from tpujob_coordinator.membership import Member, Place, World
from tpujob_coordinator.messages import gave_up
from tpujob_coordinator.outbox import Outbox
from tpujob_coordinator.progress import Progress
from tpujob_coordinator.roster import Roster
from tpujob_coordinator.stages import Send, Stage
from tpujob_coordinator.timeline import LossSeries, Timeline
from tpujob_coordinator.verdicts import End, Rank

#: A Run that was not followed by its report is sent again after this.
REPEAT_RUN_MS = 3_000


class Core:
    """State of one job's coordinator. ``now_ms`` never decreases from call to call."""

    def __init__(self, config: CoordinatorConfig, token: str, epoch: str, now_ms: int) -> None:
        self.config = config
        self.timeline = Timeline(epoch)
        self.losses = LossSeries()
        self.budgets = Budgets(config.budgets, config.budgets_used)
        self.roster = Roster(config, token, now_ms)
        self.stage = Stage.ADOPTING
        self.world: World | None = None
        self.progress: Progress | None = None
        self.ending: Ending | None = None
        self.inquiry: Inquiry | None = None  # into a world that hangs
        self.farewell: Farewell | None = None  # to a member that has to go
        self.newest_generation = 0
        self.backoff_until_ms = 0
        self.committed_step = 0
        self.step = 0
        self._adopt_until_ms = now_ms + adoption.PATIENCE_MS
        self._outbox = Outbox()
        self._append(now_ms, EventKind.COORDINATOR_STARTED)

    @property
    def members(self) -> dict[Place, Member]:
        """Members that are present, or were a moment ago."""
        return self.roster.members

    # ---- inputs

    def hello(self, connection: int, hello: Hello, now_ms: int) -> list[Send]:
        """An agent introduces itself on a new connection."""
        if reason := self.roster.refusal(hello):
            self._outbox.close(connection, Refused(reason))
            return self._outbox.take()
        known = self.members.get(Place(hello.slice, hello.host))
        if known and known.hello.incarnation == hello.incarnation:
            self._outbox.close(self.roster.rebind(known, connection, now_ms))
            return self._outbox.take()
        if known:
            self._supersede(known, hello, now_ms)
        member = Member(hello, connection, now_ms)
        self.roster.join(member)
        self._append(now_ms, EventKind.MEMBER_JOINED, member.identity | {"ip": hello.ip})
        return self._outbox.take()

    def message(self, connection: int, message: Message, now_ms: int) -> list[Send]:
        """Any later message of a connection; unknown connections are ignored."""
        member = self.roster.of(connection)
        if member is None:
            return []
        member.last_seen_ms = now_ms
        if isinstance(message, Report):
            self._report(member, message, now_ms)
        elif isinstance(message, Leaving):
            self._leaving(member, message, now_ms)
        return self._outbox.take()

    def broken(self, connection: int, now_ms: int) -> None:
        """A connection has ended; its agent gets a moment to come back."""
        self.roster.broken(connection, now_ms)

    def settle(self, now_ms: int) -> list[Send]:
        """Draw the conclusions of all inputs so far; call after each batch of them."""
        if self.stage is Stage.ADOPTING:
            self._adopt(now_ms)
        if self.stage is Stage.RUNNING:
            self._tell_progress(now_ms)
            self._finish_if_done(now_ms)
            self._end_if_due(now_ms)
        if self.stage is Stage.ENDING:
            self._conclude(now_ms)
        if self.stage is Stage.FORMING and now_ms >= self.backoff_until_ms:
            self._form(now_ms)
        return self._outbox.take()

    def tick(self, now_ms: int) -> list[Send]:
        """Time passes: find silent members. Call a few times a second."""
        self.roster.tick(now_ms)
        for member, reason, onset_ms in self.roster.overdue(now_ms):
            self._lose(member, reason, onset_ms, now_ms)
        return self._outbox.take() + self.settle(now_ms)

    def finish(self) -> list[Send]:
        """Orders that end all agents, when the job has finished."""
        for member in self.members.values():
            self._outbox.send(member, Finish(0, "every trainer exited 0"), is_last=True)
        return self._outbox.take()

    # ---- members

    def _supersede(self, known: Member, hello: Hello, now_ms: int) -> None:
        self.roster.supersede(known)
        same_pod = known.hello.pod == hello.pod
        reason = "its container was restarted" if same_pod else "its pod was replaced"
        onset_ms = known.broken_at_ms if known.connection is None else now_ms
        self._lose(known, reason, onset_ms, now_ms)

    def _lose(self, member: Member, reason: str, onset_ms: int, now_ms: int) -> None:
        """A member is gone for good, and its trainer with it."""
        self._outbox.close(self.roster.remove(member))
        if self._is_at_stake(member):
            cause = Cause.PREEMPTION if member.is_leaving else Cause.NODE
            end = end_of_member(member, cause, reason, min(onset_ms, now_ms))
            self._lost(end, now_ms)
        self._append(now_ms, EventKind.MEMBER_LEFT, member.identity | {"reason": reason})
        if self.ending:
            self.ending.waiting.discard(member.place)

    def _is_at_stake(self, member: Member) -> bool:
        """Whether the generation needs this member's process still."""
        if self.world is None or member.place not in self.world:
            return False
        done = self.progress.finished if self.progress else set()
        if member.place in done or (self.farewell and member.place in self.farewell.gone):
            return False
        if self.stage is Stage.ENDING and self.ending:
            return member.place in self.ending.waiting
        return self.stage is Stage.RUNNING

    def _leaving(self, member: Member, message: Leaving, now_ms: int) -> None:
        member.is_leaving = True
        data = member.identity | {"graceMs": message.grace_ms}
        self._append(now_ms, EventKind.DRAINING, data)
        if self.farewell:
            self.farewell.join(message.grace_ms, now_ms)
        elif self._is_at_stake(member):
            self._take_leave(member, message, now_ms)
        elif member.report:
            self._stop_stray(member, member.report)

    def _take_leave(self, member: Member, message: Leaving, now_ms: int) -> None:
        """Have everybody save and exit while there is time, or end the world at once."""
        if self.world and self.progress and self.stage is Stage.RUNNING:
            self.farewell = farewell.begin(
                self.world,
                self.progress,
                self.members,
                member,
                grace_ms=message.grace_ms,
                now_ms=now_ms,
            )
        if self.farewell and self.world:
            self._outbox.tell(self.members, self.world.places, self.farewell.save)
        else:
            at_ms = member.to_our_clock(message.sent_at_ms, now_ms)
            self._lost(farewell.end_of_leaver(member, at_ms), now_ms)

    # ---- reports

    def _report(self, member: Member, report: Report, now_ms: int) -> None:
        offset_ms = now_ms - report.sent_at_ms
        if member.clock_offset_ms is None or offset_ms < member.clock_offset_ms:
            member.clock_offset_ms = offset_ms
        member.report = report
        self.losses.add(report.losses)
        self.newest_generation = max(self.newest_generation, report.generation)
        if self.stage is Stage.ADOPTING:
            return
        world = self.world
        if world is None or member.place not in world or self.stage not in _LIVE:
            self._stop_stray(member, report)
        elif report.generation < world.generation:
            self._report_of_older(member, report, world, now_ms)
        elif self.stage is Stage.ENDING:
            self._report_of_ending(member, report, now_ms)
        else:
            self._report_of_running(member, report, now_ms)

    def _stop_stray(self, member: Member, report: Report) -> None:
        if report.state is ProcessState.RUNNING:
            self._outbox.send(member, Stop(report.generation, "not part of the present world"))

    def _report_of_older(self, member: Member, report: Report, world: World, now_ms: int) -> None:
        """The Run is on its way, or was lost with a connection."""
        if report.state is ProcessState.RUNNING:
            self._outbox.send(member, Stop(report.generation, "an old generation"))
            return
        is_lost = member.is_unsure or now_ms - member.ordered_at_ms >= REPEAT_RUN_MS
        if is_lost and self.ending:
            self.ending.waiting.discard(member.place)  # it never started, and never will
        elif is_lost:
            self._run(member, world, now_ms)  # an agent that has it ignores it

    def _run(self, member: Member, world: World, now_ms: int) -> None:
        member.is_unsure, member.ordered_at_ms = False, now_ms
        self._outbox.send(member, world.run_of(member.place))

    def _report_of_running(self, member: Member, report: Report, now_ms: int) -> None:
        member.is_unsure = False
        if self.progress:
            self.progress.take(member, report, now_ms)
        if report.state is ProcessState.RUNNING or is_success(report):
            self._hear(member, report, now_ms)
        elif self.farewell and report.exit_code == ExitCode.PREEMPTED:
            self.farewell.gone[member.place] = member.to_our_clock(report.exited_at_ms, now_ms)
        else:
            self._lost(end_of_trainer(member, report, now_ms), now_ms)

    def _hear(self, member: Member, report: Report, now_ms: int) -> None:
        """A first alarm makes everybody tell where they are; see ``_end_if_due``."""
        if report.stalled and self.inquiry is None and self.world:
            self.inquiry = Inquiry(now_ms)
            order = Stacks(self.world.generation)
            self._outbox.tell(self.members, self.world.places, order)
        if self.inquiry:
            self.inquiry.take(member.place, report)

    def _end_if_due(self, now_ms: int) -> None:
        """An inquiry is over, or a farewell has taken too long."""
        if (world := self.world) and self.inquiry and self.inquiry.is_over(world.places, now_ms):
            self._lost(self.inquiry.verdict(world, self.members, now_ms), now_ms)
        elif world and self.farewell and self.farewell.is_over(world.places, now_ms):
            self._lost(self.farewell.end(now_ms), now_ms)

    def _report_of_ending(self, member: Member, report: Report, now_ms: int) -> None:
        ending = self.ending
        if ending is None:
            return
        if self.inquiry:
            self.inquiry.take(member.place, report)
        if report.state is ProcessState.RUNNING:
            if member.is_unsure:  # the Stop may have been lost with the old connection
                member.is_unsure = False
                self._outbox.send(member, Stop(report.generation, ending.reason))
        elif member.place in ending.waiting:
            ending.waiting.discard(member.place)
            if report.state is ProcessState.EXITED and not is_success(report):
                ending.ends.append(end_of_trainer(member, report, now_ms))

    # ---- generations

    def _form(self, now_ms: int) -> None:
        number = self.newest_generation + 1
        world = membership.form_world(self.config, self.members, number, self.world)
        if not world:
            return
        self._append(now_ms, EventKind.MEMBERS_COMPLETE, {"hosts": len(world.places)})
        self._begin(world, now_ms, adopted=False)
        for place in world.places:
            self._run(self.members[place], world, now_ms)

    def _begin(self, world: World, now_ms: int, *, adopted: bool) -> Progress:
        self.world, self.newest_generation = world, world.generation
        progress = self.progress = Progress(world)
        self.stage = Stage.RUNNING
        self._append(now_ms, EventKind.GENERATION_STARTED, world.identity | {"adopted": adopted})
        return progress

    def _adopt(self, now_ms: int) -> None:
        """Find out whether a world was running when this coordinator started."""
        is_over = now_ms >= self._adopt_until_ms
        finding = adoption.look(self.config, self.members, is_over=is_over)
        if finding.found is Found.NOTHING:
            self.stage = Stage.FORMING
        elif finding.found is not Found.UNCLEAR:
            self._take_over(finding, now_ms)

    def _take_over(self, finding: Finding, now_ms: int) -> None:
        world = membership.world_of(self.config, self.members, finding.generation, finding.places)
        progress = self._begin(world, now_ms, adopted=True)
        for place in finding.places:
            member = self.members[place]
            if member.report:
                progress.take(member, member.report, now_ms)
        progress.adopted()
        if finding.found is Found.REMAINS:
            self._lost(adoption.unseen_end(self.members, finding.generation, now_ms), now_ms)

    # ---- the end of a generation

    def _lost(self, end: End, now_ms: int) -> None:
        """A member of the running generation has ended: end the others at once."""
        if self.stage is Stage.RUNNING and self.world:
            self._tell_progress(now_ms, is_last=True)
            self.stage = Stage.ENDING
            detected_ms = end.at_ms if self.farewell else now_ms  # waiting is no detection
            self.ending = Ending(end.message, detected_ms, set(self.world.places))
            for place in self.world.places:
                if member := self.members.get(place):
                    self._stop_if_alive(member, self.world.generation)
        if self.ending:
            self.ending.add(end)
            if end.rank is Rank.CERTAIN:
                self._tell_loss(now_ms)

    def _stop_if_alive(self, member: Member, generation: int) -> None:
        report = member.report
        if report and report.generation == generation and report.state is not ProcessState.RUNNING:
            if self.ending:
                self.ending.waiting.discard(member.place)
            return
        self._outbox.send(member, Stop(generation, "the generation has ended"))

    def _conclude(self, now_ms: int) -> None:
        """When the last old process is gone: what follows?"""
        ending, world = self.ending, self.world
        if ending is None or world is None:
            return
        ending.waiting.intersection_update(self.members)  # who has left has no process
        if ending.waiting:
            return
        if self.inquiry:  # who hangs is to blame for peers that gave up on it
            ending.ends.append(self.inquiry.verdict(world, self.members, now_ms))
        self._tell_loss(now_ms)
        self._append(now_ms, EventKind.GENERATION_STOPPED, {"generation": world.generation})
        self.ending, self.progress, self.inquiry, self.farewell = None, None, None, None
        end = ending.culprit()
        self.budgets, verdict = self.budgets.charge(end.cause)
        if verdict.spent:
            self._give_up(end, verdict, now_ms)
            return
        self.stage = Stage.FORMING
        if verdict.backoff_ms:
            self.backoff_until_ms = now_ms + verdict.backoff_ms
            data = {"untilAtMs": self.backoff_until_ms, "cause": end.cause.value}
            self._append(now_ms, EventKind.BACKOFF, data)

    def _tell_loss(self, now_ms: int) -> None:
        ending, world = self.ending, self.world
        if ending and world and not ending.told:
            self._append(now_ms, EventKind.LOSS, ending.loss(world, self.step))

    def _give_up(self, end: End, verdict: Verdict, now_ms: int) -> None:
        self.stage = Stage.GAVE_UP
        assert verdict.spent is not None
        data = gave_up(end, verdict.spent, self.budgets, self.committed_step)
        self._append(now_ms, EventKind.GAVE_UP, data)

    def _finish_if_done(self, now_ms: int) -> None:
        if self.world is None or self.progress is None or self.stage is not Stage.RUNNING:
            return
        if len(self.progress.finished) < len(self.world.places):
            return
        self._tell_progress(now_ms, is_last=True)
        self.stage = Stage.FINISHED
        self._append(now_ms, EventKind.FINISHED, {"step": self.step})

    # ---- telling

    def _tell_progress(self, now_ms: int, *, is_last: bool = False) -> None:
        if self.progress is None:
            return
        for kind, data in self.progress.entries(now_ms, self.losses, is_last=is_last):
            self._append(now_ms, kind, data)
        self.step = self.progress.step or self.step
        if self.progress.committed_step > self.committed_step:
            self.committed_step = self.progress.committed_step
            self.budgets = self.budgets.committed()

    def _append(self, now_ms: int, kind: EventKind, data: dict[str, Any] | None = None) -> None:
        self.timeline.append(now_ms, kind, data or {})


_LIVE = (Stage.RUNNING, Stage.ENDING)
