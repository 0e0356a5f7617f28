"""What a coordinator answers is checked event by event: a job's program may have written it."""

import copy
import dataclasses
import json
import math
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.coordinator.worlds import bring_back, save_and_leave, shrunk
from tests.core.histories import CREATED_MS, event, histories, loss, progress, start
from tests.core.stories import told, training
from tpujob_agent.protocol import Event, EventKind, ProtocolError
from tpujob_operator.core.history import History, needs_decision
from tpujob_operator.core.observations import Observation
from tpujob_operator.core.samples import JobSample, values
from tpujob_operator.core.snapshot import JobKey
from tpujob_operator.core.statusviews import findings_view, incidents_view
from tpujob_operator.core.timeline import MOST, Malformed, batch_of

T0 = CREATED_MS
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -(10**400), MOST + 1, -1, 2**63]),
    st.floats(),
    st.text(max_size=5),
    st.just("x" * 100_000),
)
_ANYTHING = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def _answer(seen: list[Observation], **more: Any) -> dict[str, Any]:
    events = [item.to_json() for item in seen if isinstance(item, Event)]
    return {"epoch": "e", "events": events, "nowMs": T0 + 10**6, **more}


def _read(answer: dict[str, Any]) -> History:
    return History.start(T0).read(batch_of(answer, 0, T0 + 10**6))


@given(histories())
def test_well_formed_events_are_read_as_they_are(seen: list[Observation]) -> None:
    """The check takes nothing from an event that the fold looks at."""
    events = [item for item in seen if isinstance(item, Event)]
    history = _read(_answer(seen))
    assert not history.skipped.count
    plain = reduce(History.apply, events, History.start(T0)).advance(T0 + 10**6)
    assert dataclasses.replace(history, cursor=plain.cursor) == plain


def test_everything_that_a_real_coordinator_says_is_well_formed() -> None:
    """A world that loses a slice, trains on smaller, and grows again."""
    simulation = shrunk()
    bring_back(simulation, 0)
    save_and_leave(simulation)
    events = [item.to_json() for item in simulation.core.timeline.after(0)]
    now_ms = simulation.now_ms
    batch = batch_of({"epoch": "e", "events": events, "nowMs": now_ms}, 0, now_ms)
    kinds = {item.kind for item in batch.known}
    assert {EventKind.LOSS, EventKind.PHASE, EventKind.GENERATION_STARTED} <= kinds
    assert not [item for item in batch.events if isinstance(item, Malformed)]


@given(histories(), st.data())
def test_no_event_stops_the_reading(seen: list[Observation], data: st.DataObject) -> None:
    """Whatever one event holds, the others are read, and status and metrics can be made."""
    answer = copy.deepcopy(_answer(seen))
    for item in answer["events"][-1:]:
        place = data.draw(st.sampled_from([item, item["data"]]))
        name = data.draw(st.sampled_from(sorted(place)))
        place[name] = data.draw(_ANYTHING)
    last = event(T0 + 10**6, EventKind.MEMBERS_COMPLETE, hosts=4)
    answer["events"].append({**last.to_json(), "seq": MOST})
    history = _read(answer)
    assert history.cursor.seq == MOST
    assert history.skipped.count <= 1
    if history.skipped.count:
        assert 0 < len(history.skipped.why) <= 200
    stored = json.dumps(history.to_json())
    assert len(stored) < 60_000
    assert History.from_json(json.loads(stored)) == history
    incidents_view(history), findings_view(history)
    sample = JobSample(JobKey("ns", "j"), history, T0 + 10**6, {}, {})
    assert all(math.isfinite(float(value.value)) for value in values(sample))


@pytest.mark.parametrize(
    ("kind", "data", "why"),
    [
        (EventKind.COMMITTED, {"step": 10**400}, "committed.step is no whole number"),
        (EventKind.COMMITTED, {}, "committed.step is no whole number"),
        (EventKind.COMMITTED, {"step": True}, "committed.step is no whole number"),
        (EventKind.COMMITTED, {"step": 1, "committedAtMs": T0 + 10**9}, "no time of up to a day"),
        (EventKind.GAVE_UP, {"cause": "process", "message": 3}, "gaveUp.message is no text: 3"),
        (EventKind.INTERVAL, {"intervalMs": 1, "predictedRatio": math.nan}, "is no number"),
        (EventKind.PROGRESS, progress(T0, 5, 3).data, "lastStep comes before its firstStep"),
        (
            EventKind.GENERATION_STARTED,
            {"generation": 1, "hosts": 1, "slices": 3},
            "list of slices",
        ),
        (EventKind.LOSS, {**loss(T0, T0).data, "isGivenUp": "no"}, "neither true nor false"),
    ],
)
def test_a_malformed_event_is_left_out_and_says_why(
    kind: EventKind, data: dict[str, Any], why: str
) -> None:
    """The reason names the field; what is shown of the value is short."""
    history = _read(_answer([event(T0, kind, 1, **data)]))
    assert history.skipped.count == 1
    assert why in history.skipped.why
    assert history.cursor.seq == 1


def test_events_without_a_number_are_counted_once() -> None:
    """They are numbered without gaps, so that the cursor passes one that has lost its own."""
    answer = _answer([event(T0, EventKind.FINISHED, 3, step=1)])
    answer["events"] = [3, {"seq": "?"}, *answer["events"]]
    history = _read(answer)
    assert (history.finished, history.skipped.count, history.cursor.seq) == (True, 2, 3)
    again = history.read(batch_of({**answer, "events": answer["events"][:2]}, 0, T0))
    assert again.skipped.count == 2


def test_texts_are_cut() -> None:
    """No message of a job fills the status of it."""
    long = "x" * 10**6
    gave_up = event(T0, EventKind.GAVE_UP, 1, cause=long, message=long)
    found = event(
        T0, EventKind.FINDING, 2, finding="straggler", isOpen=True, slice=0, host=0, node=long,
        pod=long, signal=long, ratio=2.0, message=long,
    )  # fmt: skip
    lost = event(T0, EventKind.LOSS, 1, cause=long, onsetAtMs=T0, node=long, pod=long, message=long)
    for events in ([gave_up], [found], [lost]):
        assert len(json.dumps(_read(_answer([*events])).to_json())) < 8_000


@pytest.mark.parametrize("answer", [{}, {"epoch": 3}, {"epoch": "e", "events": 3, "nowMs": 1}])
def test_what_is_no_timeline_is_refused(answer: dict[str, Any]) -> None:
    """Then there is nothing to read, and the coordinator counts as silent."""
    with pytest.raises(ProtocolError):
        batch_of(answer, 0, T0)


def test_a_watermark_of_the_far_future_books_no_time() -> None:
    """A coordinator may be a day ahead at most."""
    assert batch_of(_answer([], nowMs=MOST), 0, T0).now_ms == T0 + 86_400_000


def test_nodes_are_those_of_the_pods() -> None:
    """A job can blame no node on which it has no pod."""
    lost = _answer([loss(T0, T0, pod="ours", node="of-others"), loss(T0, T0, pod="p", node="n")])
    batch = batch_of(lost, 0, T0).placed({"ours": "node-a"})
    assert [item.data["node"] for item in batch.known] == ["node-a", ""]


def test_steps_alone_need_no_decision() -> None:
    """A loss does, and so does the step that ends it."""
    at = T0 + 1_000
    trained = reduce(History.apply, start(T0), History.start(T0)).apply(progress(at, 1, 1))
    saved = event(at, EventKind.COMMITTED, step=1)
    assert not needs_decision(trained, trained.apply(progress(at + 9, 2, 2)).apply(saved))
    lost = trained.apply(loss(at + 10, at + 5))
    assert needs_decision(trained, lost)
    again = reduce(History.apply, start(at + 20, generation=2), lost)
    assert needs_decision(lost, again)
    assert needs_decision(again, again.apply(progress(at + 90, 2, 2, generation=2)))


def test_the_first_malformed_event_is_told_once() -> None:
    """The job's own event says what was wrong; the job goes on, and its losses are seen."""
    world = training()
    broken = told(progress(world.now_ms, 1, 1), progress(world.now_ms, 2, 2), first=20)
    bad = Malformed(20, "committed.step is no whole number")
    for number in range(2):
        items = (dataclasses.replace(bad, seq=20 + 2 * number), broken.events[1])
        world.readings.append(dataclasses.replace(broken, events=items))
        world.now_ms += 5_000
        world.settle()
    assert world.notes.count("EventsSkipped") == 1
    assert world.status["ledger"]["skipped"]["count"] == 2
    world.restart_operator()
    world.settle()
    assert world.notes.count("EventsSkipped") == 1
    assert world.status["state"] == "Running"
