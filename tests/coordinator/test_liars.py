"""Agents that hold the token and lie: in every field, and at every rate."""

from __future__ import annotations

import dataclasses
import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.coordinator.simulation import Simulation, config
from tpujob_agent import protocol, wire
from tpujob_agent.protocol import EventKind, Message
from tpujob_coordinator.membership import Place
from tpujob_coordinator.roster import HELLOS_A_MINUTE
from tpujob_coordinator.timeline import ANSWER_BYTES, KEPT_BYTES, Timeline

LONG_NAME = "\u2603" * 253  # six bytes each in JSON


def say_hello(job: Simulation, number: int) -> None:
    """Another agent claims the first place."""
    agent = job.boot(Place(0, 0))
    job.connect(agent, node=LONG_NAME, pod=LONG_NAME, incarnation=str(number))


def test_a_place_takes_so_many_new_agents_a_minute() -> None:
    """The rest is refused, writes nothing into the timeline, and may come later."""
    job = Simulation(config())
    for number in range(1_000):
        say_hello(job, number)
    joined = [event for event in job.events() if event.kind is EventKind.MEMBER_JOINED]
    assert len(joined) == HELLOS_A_MINUTE
    assert "30 new agents have taken this place within a minute" in job.refusals[-1]
    job.now_ms += 60_000
    say_hello(job, 1_000)
    joined = [event for event in job.events() if event.kind is EventKind.MEMBER_JOINED]
    assert len(joined) == HELLOS_A_MINUTE + 1


def test_the_same_agent_may_come_back_at_any_rate() -> None:
    """A network that breaks every connection is no flood of agents."""
    job = Simulation(config())
    agent = job.boot(Place(0, 0))
    for _ in range(10 * HELLOS_A_MINUTE):
        job.connect(agent)
    assert not job.refusals


def test_a_timeline_and_its_answers_are_bounded_in_bytes() -> None:
    """Whatever an event holds; a reader still gets every event that is kept, in order."""
    timeline = Timeline("epoch")
    for at_ms in range(20_000):
        timeline.append(at_ms, EventKind.LOSS, {"message": "x" * 8_192})
    kept, seq = 0, 0
    while events := timeline.after(seq):
        size = sum(len(json.dumps(event.to_json())) for event in events)
        assert size <= ANSWER_BYTES
        assert seq in (0, events[0].seq - 1)
        kept, seq = kept + size, events[-1].seq
    assert seq == 20_000
    assert KEPT_BYTES - ANSWER_BYTES < kept <= KEPT_BYTES


def test_an_event_larger_than_the_answer_comes_alone() -> None:
    """Nobody waits for ever for what never fits."""
    timeline = Timeline("epoch")
    for at_ms in range(2):
        timeline.append(at_ms, EventKind.LOSS, {"message": "x" * 1_000})
    assert [event.seq for event in timeline.after(0, most_bytes=10)] == [1]


_NUMBERS = st.sampled_from([0, 1, 2, 7, 2**31, 2**53 - 1, -1, 1 - 2**53]) | st.integers(-50, 50)
_TEXTS = st.sampled_from(["", "x", LONG_NAME, "\0", "T"])
_OF_FIELD = {
    "bool": st.booleans(),
    "int": _NUMBERS,
    "str": _TEXTS,
    "int | None": st.none() | _NUMBERS,
    "ProcessState": st.sampled_from(protocol.ProcessState),
    "Phase": st.sampled_from(protocol.Phase),
    "list[list[float]]": st.lists(st.tuples(_NUMBERS, st.floats()).map(list), max_size=3),
    "list[Sample]": st.lists(st.lists(_NUMBERS, min_size=6, max_size=6), max_size=3),
}


def _lies(cls: type[Message]) -> st.SearchStrategy[Message]:
    fields = dataclasses.fields(cls)  # type: ignore[arg-type] # every message is a dataclass
    of_field = {field.name: _OF_FIELD[str(field.type)] for field in fields}
    if "generation" in of_field:
        of_field["generation"] = st.integers(0, 9) | st.just(2**31 - 1)
    return st.builds(cls, **of_field)


_LIES = st.one_of(_lies(protocol.Report), _lies(protocol.Leaving), _lies(protocol.Pong))


@settings(max_examples=50)
@example([(False, protocol.Report(0, protocol.ProcessState.IDLE, generation=2**31 - 1))])
@example([(False, protocol.Report(0, protocol.ProcessState.IDLE, generation=1, first_step=1))])
@given(st.lists(st.tuples(st.booleans(), _LIES), max_size=10))
def test_lies_within_the_bounds_break_nothing(lies: list[tuple[bool, Message]]) -> None:
    """The coordinator goes on, and tells nothing that its readers cannot take."""
    job = Simulation(config())
    job.start()
    for is_first, lie in lies:
        agent = job.agents[Place(0, 0) if is_first else Place(1, 1)]
        if agent.connection is not None:
            told = wire.decode(wire.encode(lie))
            job.route(job.core.message(agent.connection, told, job.now_ms))
        job.tick(250)
        job.settle()
    for event in job.events():
        assert json.loads(json.dumps(event.to_json(), allow_nan=False)) == event.to_json()
        assert all(value >= 0 for name, value in event.data.items() if name.endswith("AtMs"))
        assert all(abs(v) < 2**53 for v in event.data.values() if isinstance(v, int))
