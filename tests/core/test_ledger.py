"""The ledger cuts a job's life into types that add up, whatever is told and in whatever order."""

import itertools
import json
from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from tests.core.histories import CREATED_MS, event, histories, loss, progress, start
from tpujob_agent.protocol import EventKind, Phase
from tpujob_operator.core import storedledger
from tpujob_operator.core.ledger import Ledger
from tpujob_operator.core.observations import Fact, FactKind, Observation
from tpujob_operator.core.segments import MOST_SEGMENTS
from tpujob_operator.core.timetypes import DESCRIPTIONS, TimeType

T0 = CREATED_MS


def _fold(told: list[Observation]) -> Ledger:
    return reduce(Ledger.apply, told, Ledger.start(T0))


def test_every_type_is_described() -> None:
    """Reports and metrics can explain each of the 18 types."""
    assert set(DESCRIPTIONS) == set(TimeType)
    assert len(TimeType) == 18


@given(histories(), st.integers(0, 10_000))
def test_types_add_up_to_wall_time(told: list[Observation], later_ms: int) -> None:
    """At any moment types and unsettled time add up to wall time, to the millisecond."""
    now_ms = max([T0, *(seen.at_ms for seen in told)]) + later_ms
    view = _fold(told).view(now_ms)
    assert sum(view.by_type_ms.values()) + view.unsettled_ms == view.wall_ms
    assert view.wall_ms == now_ms - T0
    assert all(amount >= 0 for amount in view.by_type_ms.values())
    assert 0 <= view.unsettled_productive_ms <= view.unsettled_ms


@given(histories())
def test_counters_never_fall(told: list[Observation]) -> None:
    """What is booked stays booked: each type only grows from event to event."""
    ledgers = list(itertools.accumulate(told, Ledger.apply, initial=Ledger.start(T0)))
    for before, after in itertools.pairwise(ledgers):
        for kind, amount in before.closed.items():
            assert after.closed[kind] >= amount
        assert after.cursor_ms >= before.cursor_ms


@given(histories())
def test_persisted_ledger_goes_on_as_if_never_written(told: list[Observation]) -> None:
    """Writing the ledger to status and reading it back at any event changes nothing."""
    ledger = Ledger.start(T0)
    for seen in told:
        ledger = storedledger.from_json(json.loads(json.dumps(storedledger.to_json(ledger)))).apply(
            seen
        )
    assert ledger == _fold(told)


@given(histories())
def test_ended_ledger_is_closed(told: list[Observation]) -> None:
    """After the end nothing is unsettled and no later event changes anything."""
    end = Fact(max([T0, *(seen.at_ms for seen in told)]), FactKind.FAILED)
    ledger = _fold([*told, end])
    assert ledger.unsettled == ()
    assert ledger.apply(progress(end.at_ms + 5, 1, 2)) is ledger
    assert sum(ledger.closed.values()) == end.at_ms - T0


def test_plain_run_is_booked_phase_by_phase() -> None:
    """A run without faults: waits before the first step by name, steps productive at the end."""
    told: list[Observation] = [
        Fact(T0 + 100, FactKind.PODS_BOUND),
        *start(T0 + 300),
        progress(T0 + 440, 1, 1, inputWaitMs=10),
        progress(T0 + 940, 2, 6, saveBlockedMs=100),
        event(T0 + 950, EventKind.COMMITTED, step=6),
        event(T0 + 950, EventKind.PHASE, generation=1, phase=Phase.FINISHING.value),
        event(T0 + 990, EventKind.FINISHED, step=6),
        Fact(T0 + 1_000, FactKind.SUCCEEDED),
    ]
    assert _fold(told).closed == {
        TimeType.PROVISIONING: 100,
        TimeType.IMAGE: 200,
        TimeType.RUNTIME_INIT: 20,
        TimeType.RESTORE: 10,
        TimeType.COMPILE: 10,
        TimeType.PRODUCTIVE: 500,
        TimeType.INPUT_WAIT: 10,
        TimeType.CHECKPOINT_STALL: 140,
        TimeType.TEARDOWN: 10,
    }


def test_lost_steps_become_rollback_and_saved_ones_productive() -> None:
    """A kill costs the steps after the last commit, detection, teardown and a new start."""
    told: list[Observation] = [
        *start(T0),
        progress(T0 + 140, 1, 1),
        progress(T0 + 1_140, 2, 11),
        event(T0 + 1_200, EventKind.COMMITTED, step=6),
        progress(T0 + 1_640, 12, 16),
        loss(T0 + 1_720, T0 + 1_700),
        event(T0 + 1_750, EventKind.GENERATION_STOPPED, generation=1),
        *start(T0 + 1_760, generation=2, restored=6),
    ]
    closed = _fold(told).closed
    assert closed[TimeType.PRODUCTIVE] == 100 + 500
    assert closed[TimeType.ROLLBACK] == 500 + 500 + 60
    assert closed[TimeType.DETECTION] == 20
    assert closed[TimeType.TEARDOWN] == 30
    assert closed[TimeType.RUNTIME_INIT] == 20 + 10 + 20


def test_checkpoint_committed_unseen_settles_at_restore() -> None:
    """Steps that a restore proves durable are productive, though their commit was never told."""
    told: list[Observation] = [
        *start(T0),
        progress(T0 + 1_040, 1, 10),
        loss(T0 + 1_040, T0 + 1_040),
        event(T0 + 1_040, EventKind.GENERATION_STOPPED, generation=1),
        *start(T0 + 1_040, generation=2, restored=10),
    ]
    ledger = _fold(told)
    assert ledger.closed[TimeType.PRODUCTIVE] == 1_000
    assert TimeType.ROLLBACK not in ledger.closed


def test_new_coordinator_does_not_disturb_the_open_steps() -> None:
    """A coordinator that adopts the running world and tells it again changes no booking."""
    before = _fold([*start(T0), progress(T0 + 500, 1, 5)])
    after = before
    for seen in (
        event(T0 + 700, EventKind.COORDINATOR_STARTED),
        event(T0 + 700, EventKind.MEMBERS_COMPLETE, hosts=4),
        event(T0 + 700, EventKind.GENERATION_STARTED, generation=1, hosts=4, adopted=True),
        event(T0 + 700, EventKind.RESTORED, generation=1, step=0),
    ):
        after = after.apply(seen)
    assert after.is_training
    assert after.unsettled == before.unsettled
    assert after.cursor_ms == before.cursor_ms


def test_suspension_is_booked_until_resumed() -> None:
    """Suspended time is its own type, and unsaved steps before it are rolled back on resume."""
    told: list[Observation] = [
        *start(T0),
        progress(T0 + 140, 1, 1),
        Fact(T0 + 200, FactKind.SUSPENDED),
        Fact(T0 + 900, FactKind.RESUMED),
        *start(T0 + 1_000, generation=2),
    ]
    closed = _fold(told).closed
    assert closed[TimeType.SUSPENDED] == 700
    assert closed[TimeType.PROVISIONING] == 100
    assert closed[TimeType.ROLLBACK] == 100 + 60


def test_backoff_ends_by_itself() -> None:
    """Time after the end of a backoff is no backoff, without any event to say so."""
    told: list[Observation] = [
        *start(T0),
        loss(T0 + 100, T0 + 100),
        event(T0 + 100, EventKind.BACKOFF, untilAtMs=T0 + 300, cause="userError"),
        event(T0 + 100, EventKind.GENERATION_STOPPED, generation=1),
    ]
    view = _fold(told).view(T0 + 1_000)
    assert view.by_type_ms[TimeType.BACKOFF] == 200
    assert view.by_type_ms[TimeType.RUNTIME_INIT] == 20 + 700


def test_a_job_that_never_saves_stays_small() -> None:
    """Unsettled segments are merged, and no millisecond is lost by it."""
    ledger = _fold(start(T0))
    for step in range(1, 10 * MOST_SEGMENTS):
        ledger = ledger.apply(progress(T0 + 40 + 7 * step, step, step))
    assert len(ledger.unsettled) <= MOST_SEGMENTS
    assert sum(s.total_ms for s in ledger.unsettled) == 7 * (10 * MOST_SEGMENTS - 1)


def _world(at_ms: int, generation: int, slices: int, restored: int = 0) -> list[Observation]:
    """A world of some of two slices that starts and trains, 40 ms."""
    told = start(at_ms, generation, restored)
    for seen in told:
        if seen.kind is EventKind.GENERATION_STARTED:
            seen.data.update(slices=list(range(slices)), wantedSlices=2)
    return told


def test_a_smaller_worlds_steps_are_degraded_above_a_whole_ones() -> None:
    """100 ms a step with both slices are 100 ms of goodput a step with one, however slow it is."""
    told: list[Observation] = [
        *_world(T0, 1, slices=2),
        progress(T0 + 1_040, 1, 10),
        event(T0 + 1_040, EventKind.COMMITTED, step=10),
        loss(T0 + 1_040, T0 + 1_040),
        event(T0 + 1_040, EventKind.GENERATION_STOPPED, generation=1),
        *_world(T0 + 2_000, 2, slices=1, restored=10),
        progress(T0 + 3_640, 11, 20, generation=2, inputWaitMs=100),
        event(T0 + 3_640, EventKind.COMMITTED, step=20),
    ]
    closed = _fold(told).closed
    assert closed[TimeType.PRODUCTIVE] == 1_000 + 1_000
    assert closed[TimeType.DEGRADED] == 1_600 - 100 - 1_000
    assert closed[TimeType.INPUT_WAIT] == 100


def test_a_job_that_was_never_whole_is_as_fast_as_its_slices() -> None:
    """Without a measurement, one of two slices is taken to give half the speed."""
    told: list[Observation] = [
        *_world(T0, 1, slices=1),
        progress(T0 + 1_040, 1, 10),
        event(T0 + 1_040, EventKind.COMMITTED, step=10),
    ]
    closed = _fold(told).closed
    assert (closed[TimeType.PRODUCTIVE], closed[TimeType.DEGRADED]) == (500, 500)


def test_growing_is_a_save_and_a_start_and_no_fault() -> None:
    """After the last step the save is waited for, then comes the teardown; nothing is lost."""
    told: list[Observation] = [
        *_world(T0, 1, slices=1),
        progress(T0 + 1_040, 1, 10),
        event(T0 + 1_340, EventKind.COMMITTED, step=10),
        event(T0 + 1_400, EventKind.GENERATION_LEFT, generation=1, leftAtMs=T0 + 1_390, step=10),
        event(T0 + 1_450, EventKind.GENERATION_STOPPED, generation=1),
        *_world(T0 + 1_450, 2, slices=2, restored=10),
    ]
    closed = _fold(told).closed
    assert closed[TimeType.CHECKPOINT_STALL] == 350
    assert closed[TimeType.TEARDOWN] == 60
    assert TimeType.ROLLBACK not in closed
