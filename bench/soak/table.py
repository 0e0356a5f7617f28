"""What a soak has shown, for people: pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from bench.recovery.measure import quantile
from bench.soak.programs import Status
from bench.soak.runner import Outcome
from faults.answers import ANSWERS, Answer
from tpujob_operator.core import interval
from tpujob_operator.core.history import History
from tpujob_operator.core.interval import Costs

_HEADING = ["fault", "n", "right", "recovered p50, p95, s", "steps lost, most"]


def line(outcome: Outcome) -> str:
    """One fault in a line."""
    hit, incident = outcome.hit, outcome.incident
    place = f"slice {hit.place.slice} host {hit.place.host}"
    if not incident:
        return f"{hit.fault}: training goes on"
    detected_s = incident["detectedAfterSeconds"]
    return (
        f"{hit.fault} at {place}: {incident['cause']} {incident['rung']}, "
        f"detected {detected_s:.1f} s, recovered {outcome.recovered_s:.1f} s, "
        f"{outcome.lost_steps} steps lost"
    )


def markdown(outcomes: Sequence[Outcome]) -> str:
    """A row for each fault."""
    names = [name for name in ANSWERS if any(one.hit.fault == name for one in outcomes)]
    rows = [_row(name, [one for one in outcomes if one.hit.fault == name]) for name in names]
    lines = [_HEADING, ["---"] * len(_HEADING), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _row(name: str, these: Sequence[Outcome]) -> list[str]:
    right = sum(not one.wrong and not one.wrong_resumes for one in these)
    times = [one.recovered_s for one in these if one.recovered_s is not None]
    shown = f"{quantile(times, 0.5):.1f}, {quantile(times, 0.95):.1f}" if times else "no stop"
    lost = max(one.lost_steps for one in these)
    return [name, str(len(these)), str(right), shown, str(lost)]


def verdicts(outcomes: Sequence[Outcome], tier1_s: float) -> Iterator[str]:
    """What all of them say together.

    Args:
        outcomes: of all faults.
        tier1_s: seconds between snapshots in memory; 0: the program makes none.
    """
    count = len(outcomes)
    yield f"wrong answers: {sum(bool(one.wrong) for one in outcomes)} of {count}"
    yield f"wrong resumes: {sum(bool(one.wrong_resumes) for one in outcomes)} of {count}"
    answered = [(one, ANSWERS[one.hit.fault]) for one in outcomes if one.incident]
    told = [one for one, answer in answered if answer and answer.loses_nothing]
    if told:
        kept = sum(one.lost_steps == 0 for one in told)
        yield f"hosts told to go: saved before, no step lost: {kept} of {len(told)}"
    ends = [one.lost_work_s for one, answer in answered if _is_crash(answer)]
    if ends:
        yield f"work lost by a process's end: p50 {quantile(ends, 0.5):.1f}, most {max(ends):.1f} s"
    if ends and tier1_s:
        within = sum(lost_s <= tier1_s for lost_s in ends)
        yield f"of it at most one tier-1 interval ({tier1_s:g} s): {within} of {len(ends)}"


def _is_crash(answer: Answer | None) -> bool:
    return answer is not None and "process" in answer.causes


def goodput(first: Status, last: Status) -> float:
    """The share of the time between two statuses that was productive, settled or not."""
    good_s = _good_s(last) - _good_s(first)
    wall_s = last["goodput"]["wallSeconds"] - first["goodput"]["wallSeconds"]
    return float(good_s / wall_s) if wall_s else 0.0


def _good_s(status: Status) -> float:
    told = status["goodput"]
    return float(told["seconds"]["productive"]) + float(told.get("unsettledSeconds", 0.0))


def optimum(last: Status, outcomes: Sequence[Outcome], every_s: float) -> float | None:
    """Goodput of ``interval``'s model at its optimum, by what saves and recoveries cost this job.

    None: no save has told its cost, or nothing was recovered from.
    """
    progress = History.from_json(last["ledger"]).progress
    recoveries = [one.recovered_s for one in outcomes if one.recovered_s is not None]
    if progress.save_blocked_ms < 0 or progress.save_lag_ms < 0 or not recoveries:
        return None
    costs = Costs(
        blocked_s=progress.save_blocked_ms / 1000,
        lag_s=progress.save_lag_ms / 1000,
        recovery_s=statistics.fmean(recoveries),
        mtbf_s=every_s,
    )
    return interval.plan(costs, step_s=progress.step_ms / 1000).goodput
