"""The worlds of a job, one after the other: formed or adopted, grown, ended, concluded.

A world ("generation") is formed when enough whole slices are idle; any loss ends it;
the next one is formed when every process of the old one is gone. At no time can two
generations make steps: processes that nobody hears belong to a world that is broken, or
are waited for (see ``fence``).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tpujob_agent.protocol import (
    CoordinatorConfig,
    EventKind,
    Excuse,
    ProcessState,
    Save,
    SaveEvery,
    Stop,
)
from tpujob_coordinator import adoption, elasticity, farewell, membership
from tpujob_coordinator.adoption import Finding, Found
from tpujob_coordinator.budgets import Budgets, Verdict
from tpujob_coordinator.ending import Ending
from tpujob_coordinator.farewell import Before, Farewell
from tpujob_coordinator.fence import Unseen
from tpujob_coordinator.hangs import Inquiry
from tpujob_coordinator.health import Health
from tpujob_coordinator.membership import Member, Place, World
from tpujob_coordinator.messages import gave_up
from tpujob_coordinator.notices import Notices
from tpujob_coordinator.outbox import Outbox
from tpujob_coordinator.pacing import Pacing
from tpujob_coordinator.progress import Progress
from tpujob_coordinator.remedies import Remedies
from tpujob_coordinator.roster import Roster
from tpujob_coordinator.stages import Stage
from tpujob_coordinator.timeline import LossSeries, Timeline
from tpujob_coordinator.verdicts import End, Rank


class Generations:
    """The part of the state machine that knows worlds; ``Core`` brings it the agents' words."""

    def __init__(self, config: CoordinatorConfig, epoch: str, now_ms: int) -> None:
        self.config = config
        self.timeline = Timeline(epoch)
        self.losses = LossSeries()
        self.budgets = Budgets(config.budgets, config.budgets_used)
        self.roster = Roster(config, now_ms)
        self.pacing = Pacing(config)
        self.notices = Notices()
        self.stage = Stage.ADOPTING
        self.world: World | None = None
        self.progress: Progress | None = None
        self.health: Health | None = None
        self.remedies = Remedies(config)
        self.ending: Ending | None = None
        self.inquiry: Inquiry | None = None  # into a world that hangs
        self.farewell: Farewell | None = None  # to a member that has to go, or to a small world
        self.newest_generation = 0
        self.backoff_until_ms = 0
        self.committed_step = 0
        self.step = 0
        self.last_size = 0  # slices of the last world; 0: there was none
        self._pace = 0.0  # its steps a millisecond
        self._is_adopted = False  # from the coordinator before this one
        self._obeyed = False  # the program has looked at what was wished
        self._missing_since_ms = now_ms  # no world since then
        self._grow_at_ms = 0  # not earlier
        self._unseen = Unseen(config, now_ms)
        self._adopt_until_ms = now_ms + adoption.PATIENCE_MS
        self._outbox = Outbox()
        self._append(now_ms, EventKind.COORDINATOR_STARTED)

    @property
    def members(self) -> dict[Place, Member]:
        """Members that are present, or were a moment ago."""
        return self.roster.members

    # ---- generations

    def _form(self, now_ms: int) -> None:
        number = self.newest_generation + 1
        missing_ms = now_ms - self._missing_since_ms
        least = elasticity.least_slices(self.config, self.last_size, missing_ms)
        usable = self.remedies.usable(self.members, now_ms)
        world = membership.form_world(self.config, usable, number, self.world, least)
        if not world or self._unseen.may_train(self.world, now_ms):
            return
        self._append(now_ms, EventKind.MEMBERS_COMPLETE, {"hosts": len(world.places)})
        self._begin(world, now_ms, adopted=False)
        for place in world.places:
            self._run(self.members[place], world, now_ms)

    def _run(self, member: Member, world: World, now_ms: int) -> None:
        member.is_unsure, member.ordered_at_ms = False, now_ms
        run = world.run_of(member.place)
        run = dataclasses.replace(run, save_every_ms=self.pacing.interval_ms)
        self._outbox.send(member, run)

    def _begin(self, world: World, now_ms: int, *, adopted: bool) -> Progress:
        self.world, self.newest_generation = world, world.generation
        self._is_adopted = adopted
        self.last_size = len(world.slices)
        progress = self.progress = Progress(world, self._pace)
        self.health = Health(self.config, world)
        self.stage = Stage.RUNNING
        data = {"wantedSlices": self.config.slices, "adopted": adopted}
        self._append(now_ms, EventKind.GENERATION_STARTED, world.identity | data)
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
        self.remedies.rest(now_ms)
        self.last_size = finding.hosts // self.config.hosts_per_slice  # remains may be fewer
        if finding.found is Found.REMAINS:
            self._lost(adoption.unseen_end(self.members, finding.generation, now_ms), now_ms)

    # ---- saving and growing

    def _save_if_due(self, now_ms: int) -> None:
        """Have everybody save before hosts leave that are announced to."""
        world, progress = self.world, self.progress
        if self._is_busy() or not world or not progress or progress.finished:
            return
        due = self.notices.due(world, self.members, self.pacing.save_ms, now_ms)
        save = due and farewell.save_ahead(world, progress, self.members, now_ms, then_leave=False)
        if save:
            self.notices.answer(due, world.generation)
            self._outbox.tell(self.members, world.places, save)

    def _is_busy(self) -> bool:
        return self.stage is not Stage.RUNNING or bool(self.farewell or self.inquiry)

    def _grow_if_due(self, now_ms: int) -> None:
        """Have a small world save and leave when a larger one can be formed."""
        world, progress = self.world, self.progress
        if self._is_busy() or not world or not progress or now_ms < self._grow_at_ms:
            return
        usable = self.remedies.usable(self.members, now_ms)
        size = elasticity.size_to_grow_to(self.config, world, usable)
        if size <= len(world.slices):
            return
        save = elasticity.save_before_growing(world, progress, self.members, now_ms)
        if not save:
            return
        self.farewell = Farewell(save)
        self._grow_at_ms = now_ms + elasticity.PAUSE_MS
        data = {"slices": list(world.slices), "toSlices": size, "step": save.step}
        self._append(now_ms, EventKind.GROWING, {"generation": world.generation} | data)
        self._tell_save(save)

    def _part(self, world: World, now_ms: int) -> None:
        """Everybody has saved and left for a larger world: no loss, and nobody's fault."""
        self._tell_progress(now_ms, is_last=True)
        gone = self.farewell.gone.values() if self.farewell else ()
        left_at_ms = min(now_ms, *gone) if gone else now_ms
        self.stage = Stage.ENDING
        reason = "it has saved and left for a larger world"
        self.ending = Ending(reason, left_at_ms, set(world.places), is_planned=True)
        data = {"generation": world.generation, "leftAtMs": left_at_ms, "step": self.step}
        self._append(now_ms, EventKind.GENERATION_LEFT, data)
        self._stop_all(world)

    # ---- stragglers

    def _look_after(self, now_ms: int) -> None:
        """Tell what is known about the world's health, and act on it if that is the policy."""
        world, progress, health = self.world, self.progress, self.health
        if self.stage is not Stage.RUNNING or not world or not progress or not health:
            return
        health.ping_if_due(self.members, self._outbox, now_ms)
        for data in health.news(self.members, progress.step, now_ms):
            self._append(now_ms, EventKind.FINDING, data)
        if self.farewell or self.inquiry:
            return
        end = self.remedies.due(health, self.members, self.budgets, now_ms)
        if end is None:
            return
        self.remedies.done(end, now_ms)
        save = farewell.save_ahead(world, progress, self.members, now_ms, then_leave=True)
        if save is None:
            self._lost(end, now_ms)
            return
        self.farewell = Farewell(save, verdict=end)
        self._tell_save(save)

    # ---- the end of a generation

    @property
    def _before(self) -> Before:
        return Before(self.step, self.committed_step, self._obeyed)

    def _tell_save(self, save: Save | None) -> None:
        if save and self.world:
            self._outbox.tell(self.members, self.world.places, save)

    def _settle_doubt(self, leave: Farewell, now_ms: int) -> None:
        """It may be known by now whether the world has something to save before it ends."""
        world, progress = self.world, self.progress
        if leave.save or not world or not progress or farewell.is_in_doubt(progress, self._before):
            return
        leave.save = farewell.save_at_stake(world, progress, self.members, self._before, now_ms)
        if leave.save:
            self._tell_save(leave.save)
        else:
            leave.wait_until(now_ms)

    def _end_if_due(self, now_ms: int) -> None:
        """An inquiry is over, or a farewell has come to its end."""
        world, leave = self.world, self.farewell
        if leave:
            self._settle_doubt(leave, now_ms)
        if world and self.inquiry and self.inquiry.is_over(world.places, now_ms):
            self._judge(world, self.inquiry, now_ms)
        elif world and leave and leave.is_over(world.places, now_ms):
            if end := leave.end(now_ms):
                self._lost(end, now_ms)
            else:
                self._part(world, now_ms)

    def _judge(self, world: World, inquiry: Inquiry, now_ms: int) -> None:
        if inquiry.is_excused(world, self.members):
            self.inquiry = None
            self._outbox.tell(self.members, world.places, Excuse(world.generation))
        else:
            self._lost(inquiry.verdict(world, self.members, now_ms), now_ms)

    def _lost(self, end: End, now_ms: int) -> None:
        """A member of the running generation has ended: end the others at once."""
        if self.stage is Stage.RUNNING and self.world:
            self._tell_progress(now_ms, is_last=True)
            self.stage = Stage.ENDING
            # Waiting for a save is no detection.
            is_leaving = self.farewell and not self.farewell.is_for_growth
            detected_ms = end.at_ms if is_leaving else now_ms
            self.ending = Ending(end.message, detected_ms, set(self.world.places))
            self._stop_all(self.world)
        if self.ending:
            self.ending.add(end)
            if end.rank is Rank.CERTAIN:
                self._tell_loss(now_ms)

    def _stop_all(self, world: World) -> None:
        for place in world.places:
            if member := self.members.get(place):
                self._stop_if_alive(member, world.generation)

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
        # Who hangs is to blame for peers that gave up on it.
        if self.inquiry and not self.inquiry.is_excused(world, self.members):
            ending.ends.append(self.inquiry.verdict(world, self.members, now_ms))
        if not ending.is_planned:
            self._tell_loss(now_ms)
        self._append(now_ms, EventKind.GENERATION_STOPPED, {"generation": world.generation})
        self.ending, self.progress, self.inquiry, self.farewell = None, None, None, None
        self.health = None
        self.stage, self._missing_since_ms = Stage.FORMING, ending.detected_at_ms
        if not ending.is_planned:
            self._charge(ending, now_ms)

    def _charge(self, ending: Ending, now_ms: int) -> None:
        end = ending.culprit()
        self.budgets, verdict = self.budgets.charge(end.cause, ending.onset_ms)
        if verdict.spent:
            self._give_up(end, verdict, now_ms)
            return
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
        self._pace = self.progress.pace
        self._obeyed |= bool(self.world and farewell.obeys(self.world, self.members))
        if self.progress.committed_step > self.committed_step:
            self.committed_step = self.progress.committed_step
            self.budgets = self.budgets.committed()

    def _append(self, now_ms: int, kind: EventKind, data: dict[str, Any] | None = None) -> None:
        event = self.timeline.append(now_ms, kind, data or {})
        if kind is EventKind.PROGRESS and self.health:
            self.health.shares.see(event.data)
        planned = self.pacing.see(event)
        if planned and self.world:
            self.timeline.append(now_ms, EventKind.INTERVAL, planned)
            order = SaveEvery(self.world.generation, self.pacing.interval_ms)
            self._outbox.tell(self.members, self.world.places, order)
