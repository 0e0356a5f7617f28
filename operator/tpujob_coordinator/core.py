"""The coordinator's state machine: messages and time in, messages and timeline out.

It knows no socket and no clock. Here are its inputs, and what they mean for members
and the running world; how worlds follow each other is in ``generations``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from tpujob_agent.notices import Notice
from tpujob_agent.protocol import (
    Cause,
    EventKind,
    ExitCode,
    Finish,
    Hello,
    Leaving,
    Message,
    Pong,
    ProcessState,
    Refused,
    Report,
    Save,
    SaveEvery,
    Stacks,
    Stop,
)
from tpujob_coordinator import farewell
from tpujob_coordinator.ending import end_of_member, end_of_trainer, is_success
from tpujob_coordinator.farewell import Farewell
from tpujob_coordinator.generations import Generations
from tpujob_coordinator.hangs import Inquiry
from tpujob_coordinator.membership import Member, Place, World
from tpujob_coordinator.stages import Send, Stage
from tpujob_coordinator.verdicts import End

#: A Run that was not followed by its report is sent again after this.
REPEAT_RUN_MS = 3_000


class Core(Generations):
    """State of one job's coordinator. ``now_ms`` never decreases from call to call."""

    # ---- inputs

    def hello(self, connection: int, hello: Hello, now_ms: int) -> list[Send]:
        """An agent introduces itself on a new connection."""
        if reason := self.roster.refusal(hello, now_ms):
            self._outbox.close(connection, Refused(reason))
            return self._outbox.take()
        known = self.members.get(Place(hello.slice, hello.host))
        if known and known.hello.incarnation == hello.incarnation:
            self._outbox.close(self.roster.rebind(known, connection, now_ms))
            return self._outbox.take()
        if known:
            self._supersede(known, hello, now_ms)
        member = Member(hello, connection, now_ms)
        self.notices.mark(member)
        self.roster.join(member, now_ms)
        self._unseen.heard(member.place)
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
        elif isinstance(message, Pong) and self.health:
            self.health.pong(member, message, now_ms)
        return self._outbox.take()

    def notice(self, notices: Iterable[Notice], now_ms: int) -> list[Send]:
        """The operator tells of all hosts that are going to leave."""
        self.notices.replace(notices, self.members)
        self._save_if_due(now_ms)
        return self._outbox.take()

    def limit(self, budgets: Mapping[str, int]) -> None:
        """From now on so many restarts are allowed; what has been used stays used."""
        self.budgets = dataclasses.replace(self.budgets, limits={**budgets})

    def explain(self, taken_away: Iterable[int]) -> None:
        """Losses that began then were hosts that were taken away, as it has turned out."""
        self.budgets = self.budgets.explained(taken_away)

    def broken(self, connection: int, now_ms: int) -> None:
        """A connection has ended; its agent gets a moment to come back."""
        self.roster.broken(connection, now_ms)

    def settle(self, now_ms: int) -> list[Send]:
        """Draw the conclusions of all inputs so far; call after each batch of them."""
        if self.stage is Stage.ADOPTING:
            self._adopt(now_ms)
            self._hear_leavers(now_ms)
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
        self._save_if_due(now_ms)
        self._grow_if_due(now_ms)
        self._look_after(now_ms)
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
        """A member is gone for good; its trainer is gone with it, or will be fenced off."""
        self._outbox.close(self.roster.remove(member))
        is_in = self.world is not None and member.place in self.world
        if member.may_train(self.newest_generation if is_in else 0):
            self._unseen.lost(member.place, onset_ms)
        if self._is_at_stake(member):
            self._lost(_end_of_lost(member, reason, min(onset_ms, now_ms)), now_ms)
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
            return member.place in self.ending.waiting and not self.ending.is_planned
        return self.stage is Stage.RUNNING

    def _leaving(self, member: Member, message: Leaving, now_ms: int) -> None:
        if not member.is_leaving:  # else it says so again after a reconnect
            data = member.identity | {"graceMs": message.grace_ms}
            self._append(now_ms, EventKind.DRAINING, data)
        member.is_leaving, member.leaves_by_ms = True, now_ms + message.grace_ms
        at_ms = member.to_our_clock(message.sent_at_ms, now_ms)
        if self._is_at_stake(member):
            self._take_leave(member, at_ms, now_ms)
        elif member.report and self.stage is not Stage.ADOPTING:
            self._stop_stray(member, member.report)

    def _hear_leavers(self, now_ms: int) -> None:
        """Who had to go before the world was taken over still has to."""
        self._tell_progress(now_ms)  # of which its phase follows
        for place in self.world.places if self.world else ():
            member = self.members.get(place)
            if member and member.is_leaving and self._is_at_stake(member):
                self._take_leave(member, now_ms, now_ms)

    def _take_leave(self, member: Member, at_ms: int, now_ms: int) -> None:
        """Have everybody save and exit while there is time, or end the world at once."""
        known, grace_ms = self.farewell, member.leaves_by_ms - now_ms
        if known and (known.leaver or known.gone):
            known.join(member, grace_ms, now_ms)
            return
        if self.world and self.progress and self.stage is Stage.RUNNING:
            self.farewell = farewell.begin(
                self.world,
                self.progress,
                self.members,
                member,
                before=self._before,
                grace_ms=grace_ms,
                now_ms=now_ms,
            )
        if self.farewell:
            self._tell_save(self.farewell.save)
        else:
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

    def _report_of_running(self, member: Member, report: Report, now_ms: int) -> None:
        if member.is_unsure and self.pacing.interval_ms:  # it may have been lost
            self._outbox.send(member, SaveEvery(report.generation, self.pacing.interval_ms))
        member.is_unsure = False
        if self.progress:
            self.progress.take(member, report, now_ms)
        if self.health:
            self.health.take(member, report, now_ms)
        if report.state is ProcessState.RUNNING or is_success(report):
            self._hear(member, report, now_ms)
        elif report.exit_code == ExitCode.PREEMPTED and (leave := self._farewell_of(report)):
            at_ms = member.to_our_clock(report.exited_at_ms, now_ms)
            leave.left(member.place, at_ms, now_ms)
        else:
            self._lost(end_of_trainer(member, report, now_ms), now_ms)

    def _farewell_of(self, report: Report) -> Farewell | None:
        """The one that a trainer has left for; the coordinator before this one may have begun it.

        Who had to go then would have said so again: it was for a larger world.
        """
        if self.farewell is None and self._is_adopted and report.obeys_saves:
            self.farewell = Farewell(Save(report.generation, report.step, then_leave=True))
        return self.farewell

    def _hear(self, member: Member, report: Report, now_ms: int) -> None:
        """A first alarm makes everybody tell where they are; see ``_end_if_due``."""
        if report.stalled and self.inquiry is None and self.world:
            self.inquiry = Inquiry(now_ms)
            order = Stacks(self.world.generation)
            self._outbox.tell(self.members, self.world.places, order)
        if self.inquiry:
            self.inquiry.take(member.place, report)

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


def _end_of_lost(member: Member, reason: str, at_ms: int) -> End:
    if notice := member.notice_at(at_ms):
        return end_of_member(member, notice.cause, f"{reason}: {notice.reason}", at_ms)
    cause = Cause.PREEMPTION if member.is_leaving else Cause.NODE
    return end_of_member(member, cause, reason, at_ms)


_LIVE = (Stage.RUNNING, Stage.ENDING)
