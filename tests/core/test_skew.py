"""An operator beside coordinators and stored histories of other releases, as after a roll-back."""

from __future__ import annotations

import dataclasses
import json
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.histories import CREATED_MS, event, histories, loss, progress, start
from tests.core.stories import told, training
from tests.core.world import job_object
from tpujob_agent.protocol import Cause, EventKind
from tpujob_operator.core.forms import FORMS
from tpujob_operator.core.history import History
from tpujob_operator.core.incidents import Incidents, Rung
from tpujob_operator.core.kinds import JOB_SET
from tpujob_operator.core.observations import Observation
from tpujob_operator.core.samples import JobSample, values
from tpujob_operator.core.snapshot import JobKey
from tpujob_operator.core.timetypes import TimeType
from tpujob_operator.shell.jobstate import JobState

T0 = CREATED_MS
#: Data that are words of a list, and how a newer coordinator may put them.
_WORDED = ("cause", "phase", "finding", "signal", "budget")
_WORDS = st.text(st.characters(codec="utf-8"), max_size=12)


def _fold(seen: list[Observation]) -> History:
    return reduce(History.apply, seen, History.start(T0))


def _sums_are_whole(history: History, now_ms: int) -> bool:
    view = history.ledger.view(now_ms)
    return sum(view.by_type_ms.values()) + view.unsettled_ms == view.wall_ms == now_ms - T0


@given(histories(), _WORDS, st.sets(st.sampled_from(_WORDED)))
def test_words_of_a_newer_coordinator_break_nothing(
    told: list[Observation], word: str, which: set[str]
) -> None:
    """Whatever the words, the fold goes on, types add up to wall time, and it can be stored."""
    words = {**dict.fromkeys(which, word), "ofANewer": [word]}
    newer = [dataclasses.replace(seen, data={**seen.data, **words}) for seen in told]
    for seen in newer:
        if seen.kind is EventKind.LOSS:  # whose signal is a number
            seen.data["signal"] = 9
    history = _fold(newer)
    assert _sums_are_whole(history, max([T0, *(seen.at_ms for seen in told)]) + 1_000)
    assert History.from_json(json.loads(json.dumps(history.to_json()))) == history


_TABLES = frozenset({"closed", "closed_chips", "before", "counts", "used", "stages"})


def _newer(raw: Any, word: str, every: int) -> Any:
    """What was stored, as a newer operator may have: further keys, and words of its own."""
    if not isinstance(raw, dict):
        return [_newer(item, word, every) for item in raw] if isinstance(raw, list) else raw
    made = {name: _newer(item, word, every) for name, item in raw.items()}
    made |= dict.fromkeys({"cause", "rung", "phase", "kind"} & raw.keys(), word)
    for name in _TABLES & raw.keys():
        numbered = enumerate(raw[name].items())
        made[name] = {word + key if i % every else key: amount for i, (key, amount) in numbered}
    return made | {"ofANewer": [word]}


@given(histories(), _WORDS, st.integers(1, 3))
def test_the_history_of_a_newer_operator_is_read(
    told: list[Observation], word: str, every: int
) -> None:
    """Fields and words that are new to this operator cost none of what it understands."""
    history = _fold(told)
    read = History.from_json(_newer(json.loads(json.dumps(history.to_json())), word, every))
    now_ms = max([T0, *(seen.at_ms for seen in told)]) + 1_000
    before, after = history.ledger.view(now_ms), read.ledger.view(now_ms)
    assert after.chip_ms == before.chip_ms
    assert _sums_are_whole(read, now_ms)
    assert read.incidents.restarts == history.incidents.restarts
    assert read.progress == history.progress
    assert list(values(JobSample(JobKey("ns", "j"), read, now_ms, {}, {})))


def test_a_type_of_a_newer_operator_keeps_its_time() -> None:
    """It has no name here, and is added to what had none before."""
    raw = _fold([*start(T0), progress(T0 + 140, 1, 1)]).to_json()
    closed = raw["ledger"]["closed"]
    closed |= {"imageVerification": closed.pop("restore") - 3, "unattributed": 3}
    read = History.from_json(raw).ledger.closed
    assert read[TimeType.UNATTRIBUTED] == 7 + 3
    assert read[TimeType.COMPILE] == 10


def test_an_unknown_phase_is_setup_until_the_first_step() -> None:
    """Steps that are told of end it."""
    warm = event(T0 + 30, EventKind.PHASE, generation=1, phase="warmUp")
    history = _fold([*start(T0)[:4], warm, progress(T0 + 90, 1, 1), progress(T0 + 190, 2, 2)])
    assert history.ledger.closed[TimeType.SETUP] == 60
    assert history.ledger.is_training


def test_an_unknown_cause_is_told_in_its_own_word_and_costs_no_budget() -> None:
    """Its coordinator knows what it may spend; this operator must not end the job for it."""
    world = training(recovery={"budgets": {"process": 1, "infrastructure": 1, "noProgress": 2}})
    for number in range(4):
        at_ms = world.now_ms
        lost = loss(at_ms, at_ms - 10, generation=number + 1, cause="cosmicRay")
        seen = [
            lost,
            *start(at_ms + 10, number + 2),
            progress(at_ms + 90, 1, 1, generation=number + 2),
        ]
        world.readings.append(told(*seen, first=1 + 20 * (number + 1)))
        world.now_ms += 5_000
        world.settle()
    assert world.status["state"] == "Running"
    assert {item["cause"] for item in world.status["incidents"]} == {"unknown"}
    assert world.status["incidents"][0]["message"] == "cosmicRay: killed"
    assert {item["used"] for item in world.status["budgets"].values()} == {0}
    assert world.notes.count("OtherLoss") == 4


def test_unknown_causes_of_a_newer_operator_are_counted_together() -> None:
    """An incident that is open stays countable, whatever word it is kept under."""
    lost = _fold([*start(T0), loss(T0 + 100, T0 + 90)]).incidents.to_json()
    lost["newest"][0] |= {"cause": "cosmicRay", "rung": "R9"}
    lost |= {"counts": {"cosmicRay/R9": 1, "sunspot/R2": 2}, "used": {"sky": 3, "process": 1}}
    read = Incidents.from_json(lost)
    assert (read.open[0].cause, read.open[0].rung) == (Cause.UNKNOWN, Rung.PROCESS)
    assert read.open[0].message == "cosmicRay: killed"
    assert (read.counts, read.settled) == ({"unknown/R0": 1, "unknown/R2": 2}, {"unknown/R2": 2})
    assert Incidents.from_json(read.to_json()) == read


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"form": FORMS.newest + 1}, f"form {FORMS.newest + 1}"),
        ({"ledger": []}, "damaged"),
        ({"ledger": {"created_ms": "soon"}}, "damaged"),
        ({"incidents": {"newest": [{}]}}, "damaged"),
        ({"progress": None}, "damaged"),
        ({"operator": {"replacements": 3}}, "operator is damaged"),
    ],
)
def test_a_history_that_cannot_be_read_is_told_and_the_job_goes_on(
    damage: dict[str, Any], words: str
) -> None:
    """One event says why; the attempt that runs is left alone, and what follows is accounted."""
    world = training()
    jobset, attempt = sorted(world.objects[JOB_SET]), world.status["attempt"]
    world.obj["status"]["ledger"] |= damage
    state = JobState.of(world.obj)
    world.history, world.memory, world.unread = state.history, state.memory, state.unread
    assert words in world.unread
    world.now_ms += 5_000
    world.readings.append(told(*start(world.now_ms), first=50))
    world.settle()
    assert world.notes.count("HistoryLost") == 1
    assert (sorted(world.objects[JOB_SET]), world.status["attempt"]) == (jobset, attempt)
    assert world.status["state"] == "Running"
    assert not JobState.of(world.obj).unread
    goodput = world.status["goodput"]
    total = sum(goodput["seconds"].values()) + goodput["unsettledSeconds"]
    assert total == pytest.approx(goodput["wallSeconds"])


def test_a_history_that_can_be_read_is_not_begun_anew() -> None:
    """Nor is one that there is not yet."""
    assert not JobState.of(job_object()).unread
    world = training()
    state = JobState.of(world.obj)
    assert (state.history, state.memory, state.unread) == (world.history, world.memory, "")
