"""The picture's stretches tell the same story as the ledger."""

import itertools

from hypothesis import given

from demo.timeline import stretches
from tests.core.histories import CREATED_MS, event, histories, loss, progress, start
from tpujob_agent.protocol import Event, EventKind
from tpujob_operator.core.observations import Observation
from tpujob_operator.core.timetypes import TimeType

T0 = CREATED_MS


@given(histories())
def test_stretches_cover_wall_time_without_gaps(told: list[Observation]) -> None:
    """From creation to end every millisecond belongs to exactly one stretch."""
    events = [seen for seen in told if isinstance(seen, Event)]
    end_ms = max([T0, *(seen.at_ms for seen in events)]) + 1
    found = stretches(T0, events, end_ms)
    assert found[0].start_ms == T0
    assert found[-1].end_ms >= end_ms
    for before, after in itertools.pairwise(found):
        assert before.end_ms == after.start_ms
        assert after.end_ms > after.start_ms


def test_lost_steps_turn_red_and_kept_ones_stay_green() -> None:
    """Steps that a restore gave up are rollback, those before them productive."""
    told = [
        *start(T0),
        progress(T0 + 140, 1, 2),
        progress(T0 + 240, 3, 6),
        loss(T0 + 300, T0 + 290),
        event(T0 + 310, EventKind.GENERATION_STOPPED, generation=1),
        *start(T0 + 320, generation=2, restored=3),
    ]
    found = stretches(T0, [seen for seen in told if isinstance(seen, Event)], T0 + 360)
    spans = {(s.kind, s.start_ms - T0, s.end_ms - T0) for s in found}
    assert (TimeType.PRODUCTIVE, 40, 165) in spans
    assert (TimeType.ROLLBACK, 165, 290) in spans
    assert (TimeType.DETECTION, 290, 300) in spans
    assert (TimeType.TEARDOWN, 300, 310) in spans
