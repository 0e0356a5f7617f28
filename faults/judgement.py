"""Whether a job has answered a fault as it should: pure, from what was seen before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from faults import diary
from faults.answers import Answer
from faults.diary import Line
from faults.scene import Place
from faults.training import course

Status = Mapping[str, Any]


def is_calm(status: Status) -> bool:
    """Whether a job has recovered from what happened last, and has saved since."""
    incidents = status.get("incidents") or [{"step": 0, "recoveredAfterSeconds": 0}]
    saved = status.get("checkpoint", {}).get("step", 0)
    return "recoveredAfterSeconds" in incidents[-1] and saved > incidents[-1]["step"]


def has_recovered(before: Status, status: Status) -> bool:
    """Whether something has happened since, and a step was finished after it."""
    is_new = status["restarts"] > before["restarts"]
    return bool(is_new and "recoveredAfterSeconds" in status["incidents"][-1])


def adds_up(status: Status) -> bool:
    """Whether all types of time, with what is unsettled, make the wall time to the millisecond."""
    goodput = status["goodput"]
    total = sum(goodput["seconds"].values()) + goodput.get("unsettledSeconds", 0.0)
    return bool(round(total * 1000) == round(goodput["wallSeconds"] * 1000))


def of_status(answer: Answer | None, place: Place, before: Status, after: Status) -> list[str]:
    """What is wrong with a job's status after a fault; empty: nothing."""
    wrong = [] if adds_up(after) else [f"times do not add up: {after['goodput']}"]
    count = 0 if answer is None else 1
    if after["restarts"] != before["restarts"] + count:
        met = after["restarts"] - before["restarts"]
        return [*wrong, f"{met} incidents instead of {count}: {after['incidents'][-met:]}"]
    if answer is not None:
        wrong += _of_incident(answer, place, after["incidents"][-1])
    elif after["generation"] != before["generation"]:
        wrong.append(f"generation {after['generation']} instead of {before['generation']}")
    expected = {answer.budget: 1} if answer else {}
    if (charged := _charged(before, after)) != expected:
        wrong.append(f"charged {charged} instead of {expected}")
    return wrong


def _of_incident(answer: Answer, place: Place, incident: Status) -> list[str]:
    host = incident["worker"] if answer.names_host else place.host
    is_right = (
        incident["cause"] in answer.causes
        and incident["rung"] in answer.rungs
        and (incident["slice"], host) == place
        and answer.words in incident["message"]
    )
    wrong = [] if is_right else [f"not {answer} of {place}: {incident}"]
    if answer.loses_nothing and incident["lostSteps"]:
        wrong.append(f"steps are lost that should have been saved: {incident}")
    return wrong


def _charged(before: Status, after: Status) -> dict[str, int]:
    spent = {
        name: budget["used"] - before["budgets"][name]["used"]
        for name, budget in after["budgets"].items()
        if name != "noProgress"
    }
    return {name: number for name, number in spent.items() if number}


def of_training(
    lines: Sequence[Line], told: Mapping[int, float], before: Status, after: Status
) -> list[str]:
    """What is wrong with the starts, saves and losses of ``faults.training``; empty: nothing."""
    wrong = [why] if (why := diary.why_wrong(lines)) else []
    if after["restarts"] > before["restarts"]:
        incident = after["incidents"][-1]
        resumed = diary.resumed_at(lines, (after["attempt"], after["generation"]))
        if incident["lostSteps"] != max(0, incident["step"] - resumed):
            wrong.append(f"resumed at step {resumed}, but: {incident}")
    return [*wrong, *_of_losses(told, course(max(told, default=0)))]


def _of_losses(told: Mapping[int, float], undisturbed: Mapping[int, float]) -> Iterable[str]:
    steps = [step for step, loss in told.items() if undisturbed[step] != loss]
    if steps:
        yield f"{len(steps)} losses are not the uninterrupted run's, first of step {min(steps)}"
