"""Random histories of a job, as a coordinator and Kubernetes would tell them."""

from typing import Any

from hypothesis import strategies as st

from tpujob_agent.protocol import Event, EventKind, Finding, Phase
from tpujob_operator.core.observations import Fact, FactKind, Observation

CREATED_MS = 1_000_000


def event(at_ms: int, kind: EventKind, seq: int = 0, **data: Any) -> Event:
    """A timeline event."""
    return Event(seq, at_ms, kind, data)


def progress(at_ms: int, first: int, last: int, *, generation: int = 1, **data: Any) -> Event:
    """Steps ``first``…``last`` that ended at ``at_ms``."""
    body: dict[str, Any] = {
        "generation": generation,
        "firstStep": first,
        "lastStep": last,
        "endedAtMs": at_ms,
    }
    return event(at_ms, EventKind.PROGRESS, **(body | data))


def loss(at_ms: int, onset_ms: int, *, generation: int = 1, **data: Any) -> Event:
    """A trainer that was killed at ``onset_ms``."""
    body: dict[str, Any] = {
        "generation": generation,
        "cause": "process",
        "slice": 0,
        "host": 1,
        "node": "n",
        "pod": "p",
        "exitCode": None,
        "signal": 9,
        "onsetAtMs": onset_ms,
        "detectedAtMs": at_ms,
        "step": 0,
        "message": "killed",
    }
    return event(at_ms, EventKind.LOSS, **(body | data))


def start(at_ms: int, generation: int = 1, restored: int = 0) -> list[Observation]:
    """A world that starts and trains, 10 ms a phase."""
    told: list[Observation] = [
        event(at_ms, EventKind.MEMBERS_COMPLETE, hosts=4),
        event(at_ms, EventKind.GENERATION_STARTED, generation=generation, hosts=4, slices=2),
    ]
    for i, phase in enumerate((Phase.INIT, Phase.RESTORE, Phase.COMPILE, Phase.TRAIN)):
        told.append(
            event(at_ms + 10 * (i + 1), EventKind.PHASE, generation=generation, phase=phase.value)
        )
    restored_event = event(at_ms + 30, EventKind.RESTORED, generation=generation, step=restored)
    return sorted([*told, restored_event], key=lambda seen: seen.at_ms)


_FACTS = st.sampled_from(
    [
        FactKind.SUSPENDED,
        FactKind.RESUMED,
        FactKind.PODS_BOUND,
        FactKind.PODS_UNBOUND,
        FactKind.ATTEMPT_STARTED,
        FactKind.CHIPS_HELD,
    ]
)
_MS = st.integers(-5_000, 20_000)
_STEP = st.integers(0, 60)


@st.composite
def _anything(draw: st.DrawFn, at_ms: int) -> Observation:
    """Any event with any data, however little sense it makes in its place."""
    kind = draw(st.sampled_from([*EventKind, None]))
    if kind is None:
        return Fact(at_ms, draw(_FACTS), {"chips": draw(st.integers(0, 64))})
    first = draw(_STEP)
    data: dict[str, Any] = {
        "generation": draw(st.integers(0, 4)),
        "hosts": 4,
        "slices": list(range(draw(st.integers(1, 3)))),
        "wantedSlices": draw(st.integers(1, 3)),
        "slice": draw(st.integers(0, 1)),
        "host": draw(st.integers(0, 1)),
        "pod": draw(st.sampled_from(["p", "q"])),
        "phase": draw(st.sampled_from([phase.value for phase in Phase])),
        "step": draw(_STEP),
        "firstStep": first,
        "lastStep": first + draw(st.integers(0, 5)),
        "endedAtMs": at_ms + draw(_MS),
        "inputWaitMs": draw(_MS),
        "saveBlockedMs": draw(_MS),
        "onsetAtMs": at_ms + draw(_MS),
        "detectedAtMs": at_ms + draw(_MS),
        "leftAtMs": at_ms + draw(_MS),
        "untilAtMs": at_ms + draw(_MS),
        "cause": "process",
        "finding": draw(st.sampled_from([*Finding, "of a newer coordinator"])),
        "isOpen": draw(st.booleans()),
        "node": "n",
        "signal": 9 if kind is EventKind.LOSS else "arrival",  # one word for two things
        "ratio": draw(st.floats(1, 9)),
        "message": "m",
        "budget": "process",
        "intervalMs": draw(st.integers(1, 10**7)),
        "predictedRatio": draw(st.floats(0, 1)),
        "blockedMs": draw(_MS),
        "lagMs": draw(_MS),
    }
    return Event(0, at_ms, kind, data)


@st.composite
def histories(draw: st.DrawFn) -> list[Observation]:
    """Observations in the order of their time; ``seq`` numbers the events without gaps."""
    at_ms, seq, told = CREATED_MS, 0, []
    for _ in range(draw(st.integers(0, 25))):
        at_ms += draw(st.integers(0, 5_000))
        seen = draw(_anything(at_ms))
        if isinstance(seen, Event):
            seq += 1
            seen = Event(seq, seen.at_ms, seen.kind, seen.data)
        told.append(seen)
    return told
