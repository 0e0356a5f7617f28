"""The end of a generation: who must still go, and whose fault it was."""

from __future__ import annotations

import dataclasses
from typing import Any

from tpujob_agent.protocol import TAKEN_AWAY, Cause, ExitCode, ProcessState, Report
from tpujob_coordinator import verdicts
from tpujob_coordinator.membership import Member, Place, World
from tpujob_coordinator.verdicts import End, Rank


@dataclasses.dataclass(slots=True)
class Ending:
    """A generation that is being ended. Its Stop has been sent; its verdict may wait."""

    reason: str
    detected_at_ms: int
    waiting: set[Place]  # whose process may still be alive
    ends: list[End] = dataclasses.field(default_factory=list)
    told: End | None = None  # the culprit, once the LOSS is in the timeline
    is_planned: bool = False  # nobody's fault: the world has left to be formed larger

    def add(self, end: End) -> None:
        """One more member has ended; a leaving, hung or slow one's process is alive still."""
        self.ends.append(end)
        alive = (Cause.HANG, Cause.STRAGGLER)
        if end.cause not in alive and end.cause not in TAKEN_AWAY:
            self.waiting.discard(end.place)

    def culprit(self) -> End:
        """The end that was told, or else the surest one so far."""
        return self.told or verdicts.culprit(self.ends)

    @property
    def onset_ms(self) -> int:
        """When the fault began."""
        return min(self.culprit().at_ms, self.detected_at_ms)

    def loss(self, world: World, step: int) -> dict[str, Any]:
        """Data of the LOSS event; from now on the verdict stands."""
        end = self.told = self.culprit()
        return {
            "generation": world.generation,
            "cause": end.cause.value,
            "slice": end.place.slice,
            "host": end.place.host,
            "node": end.node,
            "pod": end.pod,
            "exitCode": end.exit_code,
            "signal": end.signal,
            "onsetAtMs": self.onset_ms,
            "detectedAtMs": self.detected_at_ms,
            "step": step,
            "message": end.message,
            "isGivenUp": end.is_given_up,
        }


def is_success(report: Report) -> bool:
    """Whether the trainer has done its part."""
    return report.state is ProcessState.EXITED and report.exit_code == ExitCode.DONE


def end_of_member(
    member: Member, cause: Cause, message: str, at_ms: int, *, is_given_up: bool = False
) -> End:
    """A member's end that is certain: it is gone, or going."""
    hello = member.hello
    end = End(member.place, at_ms, cause, Rank.CERTAIN, message, hello.node, hello.pod)
    return dataclasses.replace(end, is_given_up=is_given_up)


def end_of_trainer(member: Member, report: Report, now_ms: int) -> End:
    """The end that an EXITED or unexpectedly STOPPED trainer's report tells of."""
    cause, rank, message = verdicts.judge(report)
    at_ms = member.to_our_clock(report.exited_at_ms, now_ms)
    return dataclasses.replace(
        end_of_member(member, cause, message, at_ms),
        rank=rank,
        exit_code=report.exit_code,
        signal=report.signal,
    )
