"""The history folds timeline and facts into incidents, progress and budgets."""

import dataclasses
import json
from functools import reduce
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.core.histories import CREATED_MS, event, histories, loss, progress, start
from tests.core.world import job_object
from tpujob_agent.protocol import Budget, Event, EventKind
from tpujob_operator.api.models import parse_job
from tpujob_operator.core.history import Cursor, History
from tpujob_operator.core.incidents import MESSAGE_LIMIT, NEWEST, Rung
from tpujob_operator.core.observations import Fact, FactKind, Observation
from tpujob_operator.core.statusviews import checkpoint_view, goodput_view, progress_view
from tpujob_operator.core.timeline import TimelineBatch

T0 = CREATED_MS


def _fold(told: list[Observation]) -> History:
    return reduce(History.apply, told, History.start(T0))


def _read(events: list[Event]) -> History:
    return History.start(T0).read(TimelineBatch("e", tuple(events), 0))


@given(histories(), st.data())
def test_reading_in_pieces_and_twice_is_reading_once(
    told: list[Observation], data: st.DataObject
) -> None:
    """Any cut of a timeline into overlapping reads gives the same history as one read."""
    events = [seen for seen in told if isinstance(seen, Event)]
    whole = _read(events)
    cut = data.draw(st.integers(0, len(events)))
    again = data.draw(st.integers(0, cut))
    pieces = _read(events[:cut]).read(TimelineBatch("e", tuple(events[again:]), 0))
    assert pieces == whole


@given(histories(), st.integers(1, 26))
def test_kinds_of_a_newer_coordinator_are_skipped(told: list[Observation], place: int) -> None:
    """An event that this operator does not know changes nothing but how far it has read."""
    known = [seen for seen in told if isinstance(seen, Event)]
    stranger = event(T0, EventKind("ofANewerCoordinator"), thing="?")
    mixed = [*known[: place - 1], stranger, *known[place - 1 :]]
    numbered = [dataclasses.replace(seen, seq=seq) for seq, seen in enumerate(mixed, 1)]
    with_it, without = _read(numbered), _fold([*known])
    assert with_it.cursor == Cursor("e", len(numbered))
    assert dataclasses.replace(with_it, cursor=without.cursor) == without.advance(0)


@given(histories())
def test_persisted_history_is_equal(told: list[Observation]) -> None:
    """The state in status holds everything the fold needs."""
    history = _fold(told)
    assert History.from_json(json.loads(json.dumps(history.to_json()))) == history


def test_speed_in_tokens_is_known_after_the_second_report() -> None:
    """Tokens of the newest steps by the mean pace; unknown where tokens are not counted."""
    counted = [
        *start(T0),
        progress(T0 + 1_000, 1, 1, tokens=64),
        progress(T0 + 3_000, 2, 11, tokens=640),
    ]
    views = [progress_view(_fold(told), None) for told in (counted[:-1], counted)]
    assert [view and view.tokens_per_second for view in views] == [None, 320.0]
    silent = [*start(T0), progress(T0 + 1_000, 1, 1), progress(T0 + 3_000, 2, 11)]
    view = progress_view(_fold(silent), None)
    assert view is not None
    assert view.tokens_per_second is None


def test_mfu_follows_from_tokens_and_the_chips_that_train() -> None:
    """6e11 FLOPs a token at 320 tokens/s on two slices of four v5e chips of 197 TFLOP/s."""
    history = _fold(
        [
            event(
                T0,
                EventKind.GENERATION_STARTED,
                generation=1,
                hosts=2,
                slices=[0, 2],
                wantedSlices=3,
            ),
            progress(T0 + 1_000, 1, 1, tokens=64),
            progress(T0 + 3_000, 2, 11, tokens=640, flopsPerToken=6 * 10**11),
        ]
    )
    job = parse_job(job_object(slices=3))
    view = progress_view(history, job)
    assert view is not None
    assert view.mfu == round(6e11 * 320 / (2 * 4 * 197e12), 4)
    untold = progress_view(_fold([*start(T0), progress(T0 + 1_000, 1, 1, tokens=64)]), job)
    assert untold is not None
    assert untold.mfu is None


def test_incident_tells_what_a_kill_cost() -> None:
    """Detection, resume and lost steps of a killed trainer are known after the first step."""
    told: list[Observation] = [
        *start(T0),
        progress(T0 + 1_040, 1, 10),
        event(T0 + 1_050, EventKind.COMMITTED, step=8),
        loss(T0 + 1_130, T0 + 1_100, step=10),
        event(T0 + 1_140, EventKind.GENERATION_STOPPED, generation=1),
        *start(T0 + 1_150, generation=2, restored=8),
        progress(T0 + 1_300, 9, 9, generation=2),
    ]
    history = _fold(told)
    (incident,) = history.incidents.newest
    assert (incident.detected_after_ms, incident.recovered_after_ms) == (30, 200)
    assert (incident.rung, incident.lost_steps) == (Rung.PROCESS, 2)
    assert history.incidents.used == {Budget.PROCESS: 1}
    assert history.progress.steps_lost == 2
    assert history.progress.step == 9


def test_long_messages_keep_what_happened_and_the_end_of_the_output() -> None:
    """A program that prints much does not hide how it ended."""
    lines = "".join(f"line {number}\n" for number in range(200))
    message = f"crashed with SIGSEGV; its last output:\n{lines}the end"
    (incident,) = _fold([*start(T0), loss(T0 + 100, T0 + 90, message=message)]).incidents.newest
    assert incident.message.startswith("crashed with SIGSEGV; its last output:\nline 0\n")
    assert incident.message.endswith("line 199\nthe end")
    assert len(incident.message) == MESSAGE_LIMIT


def test_rung_follows_from_what_comes_back() -> None:
    """The same pod with a new agent is R1, another pod is R2."""
    lost = [*start(T0), loss(T0 + 100, T0 + 90, cause="node")]
    join: dict[str, Any] = {"slice": 0, "host": 1, "node": "n", "ip": "i"}
    same = _fold([*lost, event(T0 + 110, EventKind.MEMBER_JOINED, pod="p", **join)])
    other = _fold([*lost, event(T0 + 110, EventKind.MEMBER_JOINED, pod="q", **join)])
    assert same.incidents.newest[0].rung is Rung.CONTAINER
    assert other.incidents.newest[0].rung is Rung.POD
    assert other.incidents.counts == {"node/R2": 1}


def test_hosts_that_leave_because_of_a_suspension_are_no_incident() -> None:
    """What a coordinator tells of leaving hosts costs no budget and ends no suspended job."""
    history = _fold(
        [
            *start(T0),
            Fact(T0 + 100, FactKind.SUSPENDED),
            loss(T0 + 110, T0 + 105, cause="preemption"),
            event(T0 + 120, EventKind.GAVE_UP, cause="preemption", budget="x", message="spent"),
            Fact(T0 + 200, FactKind.RESUMED),
        ]
    )
    assert history.incidents.newest == ()
    assert history.incidents.used == {}
    assert history.gave_up == ""
    assert history.apply(loss(T0 + 210, T0 + 205)).incidents.restarts == 1


def test_job_that_finishes_while_it_is_suspended_has_finished() -> None:
    """An attempt that makes way for a changed one has not done what is asked for now."""
    finished = event(T0 + 120, EventKind.FINISHED, step=3)
    for told, has_finished in ((FactKind.SUSPENDED, True), (FactKind.ATTEMPT_LEFT, False)):
        history = _fold([*start(T0), Fact(T0 + 100, told), finished])
        assert history.finished is has_finished


def test_only_the_newest_incidents_are_kept_but_all_are_counted() -> None:
    """Status stays bounded over any number of incidents."""
    history = _fold(start(T0))
    for n in range(NEWEST + 5):
        history = history.apply(loss(T0 + 100 + n, T0 + 100 + n, generation=1))
    assert len(history.incidents.newest) == NEWEST
    assert history.incidents.restarts == NEWEST + 5


def test_losses_without_a_commit_are_counted_anew_after_one() -> None:
    """The no-progress breaker sees consecutive losses only."""
    history = _fold([*start(T0), loss(T0 + 100, T0 + 90), loss(T0 + 200, T0 + 190)])
    assert history.incidents.losses_without_commit == 2
    assert (
        history.apply(event(T0 + 300, EventKind.COMMITTED, step=1)).incidents.losses_without_commit
        == 0
    )


def test_newest_planned_interval_is_kept_and_shown() -> None:
    """Status tells the interval and the goodput that it should lead to, once there are any."""
    committed = event(T0 + 60, EventKind.COMMITTED, step=5)
    before = _fold([*start(T0), committed])
    plans = [
        event(T0 + 70 + n, EventKind.INTERVAL, intervalMs=ms, predictedRatio=ratio)
        for n, (ms, ratio) in enumerate([(60_000, 0.95), (90_500, 0.96)])
    ]
    after = History.from_json(_fold([*start(T0), committed, *plans]).to_json())
    shown = checkpoint_view(before), checkpoint_view(after)
    assert [view and view.interval_seconds for view in shown] == [None, 90.5]
    views = goodput_view(before, T0 + 100), goodput_view(after, T0 + 100)
    assert [view.predicted_ratio for view in views] == [None, 0.96]


def test_state_of_an_operator_that_knew_no_interval_is_read() -> None:
    """An upgrade loses nothing."""
    raw = _fold(start(T0)).to_json()
    del raw["interval"]
    assert History.from_json(raw) == _fold(start(T0))
