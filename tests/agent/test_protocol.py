"""The contract between agent, coordinator and operator."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpujob_agent import protocol, wire
from tpujob_agent.protocol import CoordinatorConfig, Event, EventKind, Message, ProtocolError

_STEP = st.integers(min_value=0, max_value=2**53 - 1)
_LOSSES = st.lists(st.tuples(_STEP.map(float), st.floats(allow_nan=False)).map(list), max_size=5)
_WHOLE = st.integers(1 - 2**53, 2**53 - 1)
_NUMBER = st.floats(2.0 - 2**53, 2.0**53 - 2)
_SAMPLES = st.lists(
    st.lists(_NUMBER, min_size=protocol.SAMPLE_VALUES, max_size=protocol.SAMPLE_VALUES), max_size=4
)
_OF_FIELD = {
    "bool": st.booleans(),
    "int": _WHOLE,
    "str": st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    "int | None": st.none() | _WHOLE,
    "ProcessState": st.sampled_from(protocol.ProcessState),
    "Phase": st.sampled_from(protocol.Phase),
    "list[list[float]]": _LOSSES,
    "list[Sample]": _SAMPLES,
}


def _messages(cls: type[Message]) -> st.SearchStrategy[Message]:
    fields = dataclasses.fields(cls)  # type: ignore[arg-type] # every message is a dataclass
    of_field = {field.name: _OF_FIELD[str(field.type)] for field in fields}
    if "generation" in of_field:
        of_field["generation"] = st.integers(0, 2**31 - 1)
    return st.builds(cls, **of_field)


MESSAGES = [
    protocol.Hello,
    protocol.Report,
    protocol.Leaving,
    protocol.Pong,
    protocol.Run,
    protocol.Stop,
    protocol.Save,
    protocol.SaveEvery,
    protocol.Stacks,
    protocol.Ping,
    protocol.Finish,
    protocol.Refused,
]


@given(st.one_of([_messages(cls) for cls in MESSAGES]))
def test_every_message_survives_the_wire(message: Message) -> None:
    """Decoding what was encoded gives the same message, on one line."""
    line = wire.encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert wire.decode(line) == message


def test_what_is_at_its_default_does_not_travel() -> None:
    """A report of ten thousand agents is mostly defaults."""
    idle = protocol.Report(1, protocol.ProcessState.IDLE, 0)
    assert json.loads(wire.encode(idle)) == {
        "type": "report",
        "sent_at_ms": 1,
        "state": "idle",
        "generation": 0,
    }


@pytest.mark.parametrize(
    ("hosts", "interval_s", "timeout_s"), [(0, 1, 5), (2000, 1, 5), (10_000, 5, 15)]
)
def test_large_worlds_report_less_often(hosts: int, interval_s: float, timeout_s: float) -> None:
    """At most 2,000 reports a second; three of them may be missed."""
    assert wire.report_interval_s(hosts) == interval_s
    assert wire.member_timeout_s(hosts) == timeout_s


def test_unknown_keys_are_ignored() -> None:
    """A newer peer may say more than this one understands."""
    raw = json.loads(wire.encode(protocol.Leaving(1, 2))) | {"mood": "fine"}
    assert wire.decode(json.dumps(raw).encode()) == protocol.Leaving(1, 2)


HELLO = (
    b'{"type": "hello", "slice": 0, "host": 0, "pod": "p", "node": "n", "ip": "1.1.1.1", '
    b'"incarnation": "i", "sent_at_ms": 1, %s}'
)
REPORT = b'{"type": "report", "sent_at_ms": 1, "state": "idle", "generation": 1, %s}'


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"GET / HTTP/1.1",
        b"[]",
        b"null",
        b'"hello"',
        b"{}",
        b'{"type": "bogus"}',
        b'{"type": ["hello"]}',
        b'{"type": "leaving"}',
        b'{"type": "leaving", "sent_at_ms": "now", "grace_ms": 1}',
        b'{"type": "leaving", "sent_at_ms": true, "grace_ms": 1}',
        b'{"type": "leaving", "sent_at_ms": 1.5, "grace_ms": 1}',
        b'{"type": "stop", "generation": 1, "reason": null}',
        b'{"type": "report", "sent_at_ms": 1, "state": "dancing", "generation": 1}',
        b'{"type": "report", "sent_at_ms": 1, "state": "idle", "generation": 1, "losses": [[1]]}',
        b'{"type": "report", "sent_at_ms": 1, "state": "idle", "generation": 1, "losses": 3}',
        b'{"type": "report", "sent_at_ms": 1, "state": "idle", "generation": 1, "samples": [[1]]}',
        b'{"type": "report", "sent_at_ms": 1, "state": "idle", "generation": 1, "step": 1%s}'
        % (b"0" * 400),
        b'{"type": "leaving", "sent_at_ms": 9007199254740992, "grace_ms": 1}',
        b'{"type": "leaving", "sent_at_ms": -9007199254740992, "grace_ms": 1}',
        b'{"type": "stop", "generation": 1, "reason": "%s"}' % (b"x" * 8_193),
        b'{"type": "stop", "generation": 1, "reason": "\\ud800"}',
        HELLO % b'"pod": "%s"' % (b"x" * 254),
        HELLO % b'"node": "%s"' % (b"x" * 1_000_000),
        HELLO % b'"ip": "%s"' % (b"1" * 65),
        HELLO % b'"incarnation": "%s"' % (b"x" * 65),
        HELLO % b'"slice": 1e400',
        REPORT % b'"generation": 2147483648',
        REPORT % b'"generation": -1',
        REPORT % b'"losses": [[NaN, 1.0]]',
        REPORT % b'"losses": [[Infinity, 1.0]]',
        REPORT % b'"losses": [[1e300, 1.0]]',
        REPORT % b'"losses": [%s]' % b",".join([b"[1,1]"] * 513),
        REPORT % b'"samples": [[1, Infinity, 0, 0, 0, 0]]',
        REPORT % b'"samples": [[NaN, 1, 0, 0, 0, 0]]',
        REPORT % b'"samples": [%s]' % b",".join([b"[1,1,1,1,1,1]"] * 65),
        REPORT % b'"exit_code": 1%s' % (b"0" * 5_000),
        b"\xff\xfe\x00",
        b"[" * 100_000,
    ],
)
def test_garbage_is_refused(line: bytes) -> None:
    """Whatever else comes raises the one error that both ends handle."""
    with pytest.raises(ProtocolError):
        wire.decode(line)


def test_what_a_program_exaggerates_is_cut_and_its_agent_understood() -> None:
    """An agent whose reports were refused would count as gone."""
    report = protocol.Report(
        1,
        protocol.ProcessState.RUNNING,
        1,
        step=2**62,
        tail="x" * 10_000 + "\ud800",
        stacks="y" * 20_000,
        losses=[[2**60, 1.0], *([step, 0.5] for step in range(600))],
        samples=[[1, math.nan, 0, 0, 0, 0], [2, 1, 2, 3, 4, 5]],
    )
    told = wire.decode(wire.encode(report))
    assert isinstance(told, protocol.Report)
    assert (told.step, len(told.tail), len(told.stacks)) == (2**53 - 1, 8_192, 16_384)
    assert (len(told.losses), told.losses[-1]) == (512, [599, 0.5])
    assert told.samples == [[2, 1, 2, 3, 4, 5]]


def test_events_survive_the_way_over_http() -> None:
    """An event's JSON gives the event again; a newer coordinator's kind keeps its number."""
    event = Event(3, 1000, EventKind.PHASE, {"generation": 1, "phase": "train"})
    raw = json.loads(json.dumps(event.to_json()))
    assert Event.from_json(raw) == event
    assert Event.from_json(raw | {"kind": "newer"}) == Event(3, 1000, EventKind.UNKNOWN, event.data)
    for nonsense in (raw | {"kind": 3}, raw | {"seq": None}, {"seq": 3}):
        with pytest.raises(ProtocolError):
            Event.from_json(nonsense)


def test_equal_configurations_are_equal_text() -> None:
    """The operator compares configurations as text, so it must not depend on key order."""
    one = CoordinatorConfig("ns", "j", 1, 2, 0, 2, {"a": 1, "b": 2})
    other = CoordinatorConfig("ns", "j", 1, 2, 0, 2, {"b": 2, "a": 1})
    assert one.to_json() == other.to_json()
    assert CoordinatorConfig.from_json(one.to_json()) == one
    newer = json.dumps(json.loads(one.to_json()) | {"of_a_newer_operator": 1})
    assert CoordinatorConfig.from_json(newer) == one


def test_every_cause_has_a_budget() -> None:
    """No loss may be free of charge, but one that only a newer coordinator understands."""
    assert set(protocol.BUDGET_OF_CAUSE) == set(protocol.Cause) - {protocol.Cause.UNKNOWN}
