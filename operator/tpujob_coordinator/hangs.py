"""Who holds up a world that makes no progress: judged by where everybody's threads are.

In a world in lock-step one stuck process stops all, and all look alike by their
step numbers. What differs is where the main threads stand: the others wait in a
collective, and the culprit does something else.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping

from tpujob_agent.protocol import Cause, Report
from tpujob_agent.stacks import NO_ANSWER
from tpujob_coordinator.ending import end_of_member
from tpujob_coordinator.membership import Member, Place, World
from tpujob_coordinator.verdicts import End, Rank

#: After the first alarm, how long the others have to tell where they are.
INQUIRY_MS = 2_500
#: A process's state in /proc while a signal has stopped it.
STOPPED = "T"
_SHOWN_FRAMES = 6
#: Frames that make two stacks the same place; line numbers differ among equals.
_COMPARED_FRAMES = 4
_THREAD = re.compile(r"(?m)^(?:Current t|T)hread 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'(?m)^\s+File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>.*)$')
#: Calls in which a host waits for the others.
_WAITING = re.compile(r"/(jax|jaxlib|torch)/|/tpujob_checkpoint/distributed\.py$")


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """One call of a stack."""

    file: str
    line: int
    name: str

    def __str__(self) -> str:
        """As people read it: ``train.py:88 in step``."""
        return f"{'/'.join(self.file.split('/')[-2:])}:{self.line} in {self.name}"


def main_frames(stacks: str) -> tuple[Frame, ...]:
    """The main thread's calls, innermost first: the last thread that faulthandler lists."""
    threads = _THREAD.split(stacks)[1:]
    found = _FRAME.finditer(threads[-1]) if threads else iter(())
    return tuple(Frame(m["file"], int(m["line"]), m["name"]) for m in found)


class Inquiry:
    """An alarm of one agent, and what all of them have told since."""

    def __init__(self, now_ms: int) -> None:
        self.deadline_ms = now_ms + INQUIRY_MS
        self._told: dict[Place, Report] = {}
        self._alarm = ""

    def take(self, place: Place, report: Report) -> None:
        """Note a member's alarm or answer."""
        self._alarm = self._alarm or report.stalled
        if report.stacks or report.process_state == STOPPED:
            self._told[place] = report

    def is_over(self, places: Iterable[Place], now_ms: int) -> bool:
        """Whether everybody has answered, or nobody is waited for any more."""
        answered = {place for place, report in self._told.items() if report.stacks}
        return now_ms >= self.deadline_ms or answered.issuperset(places)

    def is_excused(self, world: World, members: Mapping[Place, Member]) -> bool:
        """Whether nobody hangs: some hosts wait for a save, and the others only for them.

        A save has a limit of its own, after which the host that waits for it raises an alarm. Nor
        does anybody hang if the alarm was sent before its excuse arrived.
        """
        reports = [m.report for p in world.places if (m := members.get(p)) and m.report]
        alarms = [report for report in reports if report.stalled]
        if not alarms:
            return True
        if any(report.waits_for_save for report in alarms):
            return False
        is_saved = any(report.waits_for_save for report in reports)
        return is_saved and not any(map(_is_stuck, self._suspects(members).values()))

    def _suspects(self, members: Mapping[Place, Member]) -> dict[Place, Report]:
        """What was told by all but those who wait for a save, and not for too long."""
        newest = {place: m.report for place in self._told if (m := members.get(place))}
        saving = {p for p, r in newest.items() if r and r.waits_for_save and not r.stalled}
        return {place: report for place, report in self._told.items() if place not in saving}

    def verdict(self, world: World, members: Mapping[Place, Member], now_ms: int) -> End:
        """The end of the generation, with the culprit if one stands out."""
        culprits, reason = judge(self._suspects(members))
        member = members.get(culprits[0]) if culprits else None
        since_ms = _last_step_ms(world, members, now_ms)
        message = f"hangs: {self._alarm}. {reason}"
        if member is None:
            return End(Place(-1, -1), since_ms, Cause.HANG, Rank.CHECKED, message)
        return end_of_member(member, Cause.HANG, message, since_ms)


def _is_stuck(report: Report) -> bool:
    """Whether it is held up by itself, and not by another host."""
    frames = main_frames(report.stacks)
    is_elsewhere = bool(frames) and not _WAITING.search(frames[0].file)
    return report.process_state == STOPPED or report.stacks == NO_ANSWER or is_elsewhere


def _last_step_ms(world: World, members: Mapping[Place, Member], now_ms: int) -> int:
    """When the newest step was finished: the hang has begun after it."""
    times = [
        member.to_our_clock(member.report.step_at_ms or member.report.phase_at_ms, now_ms)
        for place in world.places
        if (member := members.get(place)) and member.report
    ]
    return max((at_ms for at_ms in times if at_ms > 0), default=now_ms)


def judge(reports: Mapping[Place, Report]) -> tuple[list[Place], str]:
    """The members that hold up the others, and a sentence that says why they are the ones."""
    stopped = sorted(p for p, report in reports.items() if report.process_state == STOPPED)
    if stopped:
        return stopped, f"{_names(stopped)} is stopped by a signal (SIGSTOP)"
    stacks = {place: main_frames(report.stacks) for place, report in reports.items()}
    known = {place: frames for place, frames in stacks.items() if frames}
    if not known:
        return [], "No trainer tells where its threads are"
    if silent := sorted(set(stacks) - set(known)):
        return silent, f"{_names(silent)} does not answer, the others do"
    for group in (_not_waiting(known), _minority(known)):
        if group:
            return group, f"{_names(group)} is in {_shown(known[group[0]])}, the others elsewhere"
    place, frames = min(known.items())
    return [], f"No host stands out: all are where {_names([place])} is, in {_shown(frames)}"


def _not_waiting(stacks: Mapping[Place, tuple[Frame, ...]]) -> list[Place]:
    """Those whose innermost call is their own, if the rest wait inside the framework."""
    waiting = {p for p, frames in stacks.items() if _WAITING.search(frames[0].file)}
    busy = sorted(set(stacks) - waiting)
    return busy if waiting and len(busy) < len(stacks) else []


def _minority(stacks: Mapping[Place, tuple[Frame, ...]]) -> list[Place]:
    """The smallest group at one place, if it is less than half of all."""
    groups: dict[tuple[tuple[str, str], ...], list[Place]] = collections.defaultdict(list)
    for place, frames in stacks.items():
        groups[tuple((f.file, f.name) for f in frames[:_COMPARED_FRAMES])].append(place)
    smallest = min(groups.values(), key=lambda group: (len(group), group))
    return sorted(smallest) if 2 * len(smallest) < len(stacks) else []


def _names(places: Iterable[Place]) -> str:
    shown = [f"slice {place.slice} host {place.host}" for place in places]
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")


def _shown(frames: tuple[Frame, ...]) -> str:
    return " < ".join(str(frame) for frame in frames[:_SHOWN_FRAMES])
