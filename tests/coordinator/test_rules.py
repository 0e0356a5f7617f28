"""The pure rules: who is the culprit, what it costs, who is in the world, what is kept."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.coordinator.simulation import config
from tpujob_agent.protocol import (
    BUDGET_OF_CAUSE,
    Budget,
    Cause,
    EventKind,
    Hello,
    ProcessState,
    Report,
)
from tpujob_coordinator import budgets as budget_rules
from tpujob_coordinator import timeline as timelines
from tpujob_coordinator.budgets import Budgets
from tpujob_coordinator.membership import Member, Place, World, form_world
from tpujob_coordinator.timeline import LossSeries, Timeline
from tpujob_coordinator.verdicts import End, Rank, culprit, judge


def exited(**how: int | str | None) -> Report:
    """A report of a trainer that has ended."""
    return dataclasses.replace(Report(1, ProcessState.EXITED, 1), **how)  # type: ignore[arg-type] # as named


@pytest.mark.parametrize(
    ("how", "cause", "rank"),
    [
        ({"signal": 9}, Cause.PROCESS, Rank.CERTAIN),
        ({"signal": 11}, Cause.PROCESS, Rank.CERTAIN),
        ({"exit_code": 137}, Cause.PROCESS, Rank.CERTAIN),  # a shell's word for SIGKILL
        ({"exit_code": 1}, Cause.USER_ERROR, Rank.OWN_EXIT),
        ({"exit_code": 42}, Cause.USER_ERROR, Rank.OWN_EXIT),
        ({"exit_code": 255}, Cause.USER_ERROR, Rank.OWN_EXIT),
        ({"exit_code": 65}, Cause.CHECKPOINT, Rank.CHECKED),
        ({"exit_code": 70}, Cause.HANG, Rank.CHECKED),
        ({"exit_code": 74}, Cause.STORAGE, Rank.CHECKED),
        ({"exit_code": 75}, Cause.PROCESS, Rank.CHECKED),
        ({"signal": 9, "killed_by_agent": "no step for 60 s"}, Cause.HANG, Rank.CHECKED),
        ({"killed_by_agent": "port in use"}, Cause.PROCESS, Rank.CHECKED),
        ({"exit_code": 17}, Cause.PROCESS, Rank.FOLLOWER),
        ({"signal": 6}, Cause.PROCESS, Rank.FOLLOWER),
        ({"exit_code": 134}, Cause.PROCESS, Rank.FOLLOWER),
    ],
)
def test_an_exit_has_a_cause_and_a_rank(
    how: dict[str, int | str], cause: Cause, rank: Rank
) -> None:
    """The table of exits, from the contract's codes to plain signals."""
    assert judge(exited(**how))[:2] == (cause, rank)


def test_a_user_errors_message_ends_with_its_output() -> None:
    """The tail tells what went wrong, and is there only if there was output."""
    assert judge(exited(exit_code=2, tail="a\nboom\n"))[2].endswith("boom")
    assert judge(exited(exit_code=2))[2] == "exited with code 2"


def test_a_lost_peers_message_ends_with_the_output() -> None:
    """Exit code 17 may be a wrong verdict: what the program said last is told with it."""
    assert judge(exited(exit_code=17, tail="a\nboom\n"))[2].endswith("boom")


def test_lack_of_memory_is_told_with_the_limit() -> None:
    """Beside a plain SIGKILL, and beside the exit of a program whose child was killed."""
    limit = "the container's limit is 64 MiB"
    killed = judge(exited(signal=9, out_of_memory=limit))
    assert killed == (Cause.PROCESS, Rank.CERTAIN, f"out of memory ({limit}): killed by SIGKILL")
    child = judge(exited(exit_code=1, out_of_memory=limit))
    assert child == (
        Cause.USER_ERROR,
        Rank.OWN_EXIT,
        f"out of memory ({limit}): exited with code 1",
    )
    assert "memory" not in judge(exited(signal=9))[2]


_ENDS = st.builds(
    End,
    place=st.builds(Place, st.integers(0, 9), st.integers(0, 9)),
    at_ms=st.integers(0, 1000),
    cause=st.sampled_from([*BUDGET_OF_CAUSE]),
    rank=st.sampled_from(Rank),
    message=st.just(""),
)


@given(st.lists(_ENDS, min_size=1, unique_by=lambda end: end.place))
def test_the_culprit_is_the_surest_and_earliest(ends: list[End]) -> None:
    """No other end is surer, none as sure is earlier, and order of arrival does not matter."""
    found = culprit(ends)
    assert all((found.rank, found.at_ms) <= (end.rank, end.at_ms) for end in ends)
    assert culprit(reversed(ends)) == found


@given(
    limit=st.integers(min_value=-1, max_value=5),
    causes=st.lists(st.sampled_from([Cause.PROCESS, Cause.HANG, Cause.CHECKPOINT]), max_size=8),
)
def test_a_budget_of_n_allows_n_restarts(limit: int, causes: list[Cause]) -> None:
    """Causes that share a budget are counted together, and -1 is no limit."""
    state = Budgets({"process": limit}, {})
    allowed = 0
    for cause in causes:
        state, verdict = state.charge(cause, 0)
        if verdict.spent:
            assert verdict.spent is Budget.PROCESS
            break
        allowed += 1
    assert allowed == (len(causes) if limit < 0 else min(limit, len(causes)))


def test_infrastructure_never_spends_the_users_budget() -> None:
    """Preemptions and lost nodes are counted apart."""
    state = Budgets({"userError": 0, "process": 0}, {})
    for cause in (Cause.PREEMPTION, Cause.NODE, Cause.PREEMPTION):
        state, verdict = state.charge(cause, 0)
        assert verdict.spent is None
    assert state.used == {"infrastructure": 3}


def test_backoff_doubles_up_to_a_minute() -> None:
    """The first restart is at once, and a commit starts the row anew."""
    state, waits = Budgets({}, {}), []
    for _ in range(9):
        state, verdict = state.charge(Cause.USER_ERROR, 0)
        waits.append(verdict.backoff_ms)
    assert waits == [0, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]
    assert state.committed().charge(Cause.USER_ERROR, 0)[1].backoff_ms == 0


def test_hosts_that_were_taken_away_are_no_lack_of_progress() -> None:
    """However late it turns out, also before the loss is charged."""
    state = Budgets({"noProgress": 2}, {})
    for onset_ms in (10, 20):
        state, verdict = state.charge(Cause.NODE, onset_ms)
        assert verdict.spent is None
    assert state.charge(Cause.NODE, 30)[1] == budget_rules.Verdict(Budget.NO_PROGRESS)
    state = state.explained([10, 30])
    assert state.without_commit == 1
    state, verdict = state.charge(Cause.NODE, 30)
    assert (state.without_commit, verdict.spent) == (1, None)
    state, _ = state.charge(Cause.PREEMPTION, 40)
    assert state.without_commit == 1
    assert state.used == {Budget.INFRASTRUCTURE: 4}
    state = state.committed().explained([10])
    assert state.without_commit == 0
    assert state.charge(Cause.NODE, 50)[0].without_commit == 1


def test_restarts_used_before_count() -> None:
    """What a previous attempt has used is not given again."""
    state = Budgets({"process": 3}, {"process": 3})
    assert state.charge(Cause.PROCESS, 0)[1] == budget_rules.Verdict(Budget.PROCESS)


def member(place: Place, state: ProcessState | None, **fields: bool | None) -> Member:
    """A member in a state."""
    hello = Hello(place.slice, place.host, "p", "n", f"10.0.{place.slice}.{place.host}", "i", 0)
    report = Report(0, state, 0) if state else None
    made = Member(hello, 1, 0, report=report)
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type] # as named


_PLACES = [Place(s, h) for s in range(3) for h in range(2)]


@given(st.sets(st.sampled_from(_PLACES)), st.sets(st.integers(0, 2), max_size=2))
def test_a_world_is_whole_slices_of_idle_members(idle: set[Place], previous: set[int]) -> None:
    """Two whole slices, never a part of one, the previous ones preferred; or no world at all."""
    wanted = config(slices=2, spares=1)
    members = {
        place: member(place, ProcessState.IDLE if place in idle else ProcessState.RUNNING)
        for place in _PLACES
    }
    last = World(1, tuple(p for p in _PLACES if p.slice in previous), "x")
    world = form_world(wanted, members, 2, last, least=2)
    whole = {s for s in range(3) if {Place(s, 0), Place(s, 1)} <= idle}
    if len(whole) < 2:
        assert world is None
        return
    assert world is not None
    assert set(world.places) <= idle
    assert len(world.places) == 4
    assert set(world.slices) <= whole
    assert len(set(world.slices) & previous) == min(2, len(whole & previous))
    assert list(world.places) == sorted(world.places)


@pytest.mark.parametrize(
    "other",
    [
        member(Place(1, 1), None),
        member(Place(1, 1), ProcessState.RUNNING),
        member(Place(1, 1), ProcessState.IDLE, is_leaving=True),
        member(Place(1, 1), ProcessState.IDLE, connection=None),
    ],
)
def test_who_may_have_a_process_is_not_idle(other: Member) -> None:
    """Unheard, running, leaving or disconnected members hold the next world up."""
    places = [Place(0, 0), Place(0, 1), Place(1, 0)]
    members = {place: member(place, ProcessState.STOPPED) for place in places}
    assert form_world(config(), members | {other.place: other}, 1, None, 2) is None


def test_every_generation_has_its_own_port() -> None:
    """No world may meet its predecessor's coordination service; after the span they repeat."""
    places = [Place(s, h) for s in range(2) for h in range(2)]
    members = {place: member(place, ProcessState.IDLE) for place in places}
    leaders = [form_world(config(), members, g, None, 2) for g in (1, 2, 10_001)]
    assert [world.leader for world in leaders if world] == [
        "10.0.0.0:20001",
        "10.0.0.0:20002",
        "10.0.0.0:20001",
    ]


@given(st.lists(st.integers(0, 1000)), st.integers(0, 40), st.integers(1, 10))
def test_the_timeline_is_gapless_and_in_order(times: list[int], after: int, limit: int) -> None:
    """Whatever the clock says, numbers and times never go back, and a cursor misses nothing."""
    timeline = Timeline("epoch")
    for at_ms in times:
        timeline.append(at_ms, EventKind.BACKOFF, {})
    events = timeline.after(0, limit=len(times))
    assert [event.seq for event in events] == list(range(1, len(times) + 1))
    assert [e.at_ms for e in events] == sorted(e.at_ms for e in events)
    assert timeline.after(after, limit) == events[after : after + limit]


def test_the_timeline_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that was away too long goes on with the oldest event that is left."""
    monkeypatch.setattr(timelines, "KEPT_EVENTS", 10)
    timeline = Timeline("epoch")
    for at_ms in range(25):
        timeline.append(at_ms, EventKind.BACKOFF, {})
    assert [event.seq for event in timeline.after(3, limit=2)] == [16, 17]


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(allow_nan=False, allow_infinity=False))))
def test_a_redone_step_replaces_its_loss(pairs: list[tuple[int, float]]) -> None:
    """One loss per step, the newest known one, in order of steps."""
    series = LossSeries()
    for pair in pairs:
        series.add([pair])
    assert series.after(0) == [[step, loss] for step, loss in sorted(dict(pairs).items())]


def test_a_loss_that_is_no_number_is_null() -> None:
    """JSON knows neither NaN nor infinity."""
    series = LossSeries()
    series.add([[1, 2.0], [2, math.nan], [3, math.inf]])
    assert series.after(0) == [[1, 2.0], [2, None], [3, None]]
    assert (series.up_to(1), series.up_to(2), series.up_to(0)) == (2.0, None, None)
