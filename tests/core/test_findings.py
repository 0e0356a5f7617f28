"""What the coordinator finds out becomes conditions, events and status, and replacements."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.histories import loss, progress, start
from tests.core.stories import told, training
from tests.core.world import World
from tpujob_agent.protocol import Event, EventKind, Finding
from tpujob_operator.core.findings import Findings
from tpujob_operator.core.observations import Observation


def found(at_ms: int, kind: Finding = Finding.STRAGGLER, *, is_open: bool = True) -> Event:
    """A finding about host 0 of slice 1, or about all."""
    place: dict[str, Any] = {"slice": 1, "host": 0, "node": "n1", "pod": "p", "signal": "arrival"}
    if kind is Finding.SLOWDOWN:
        place = {"slice": -1, "host": -1, "node": "", "pod": "", "signal": ""}
    data = {"finding": kind.value, "isOpen": is_open, "ratio": 1.3, "step": 5, "generation": 1}
    return Event(1, at_ms, EventKind.FINDING, data | place | {"message": f"A {kind.value}."})


def read(world: World, *events: Observation, first: int = 50) -> None:
    """The operator reads these events of the coordinator."""
    world.now_ms += 1_000
    world.readings.append(told(*events, first=first))
    world.settle()


def test_a_straggler_is_a_condition_an_event_and_in_status() -> None:
    """Until it is none any more."""
    world = training()
    read(world, found(world.now_ms))
    assert world.condition("Degraded") == ("True", "Straggler")
    assert world.condition("Ready")[0] == "True"
    (item,) = world.status["findings"]
    assert (item["kind"], item["slice"], item["worker"], item["ratio"]) == ("straggler", 1, 0, 1.3)
    assert "Straggler" in world.notes
    read(world, found(world.now_ms, is_open=False), first=60)
    assert world.condition("Degraded")[0] == "False"
    assert not world.status.get("findings")


def test_the_straggler_is_told_before_what_follows_from_it() -> None:
    """One condition has one reason; status lists all."""
    world = training()
    read(world, found(world.now_ms, Finding.SLOWDOWN), found(world.now_ms))
    assert world.condition("Degraded") == ("True", "Straggler")
    assert [item["kind"] for item in world.status["findings"]] == ["slowdown", "straggler"]


@pytest.mark.parametrize("kind", [EventKind.COORDINATOR_STARTED, EventKind.GENERATION_STOPPED])
def test_findings_end_with_the_generation(kind: EventKind) -> None:
    """The next one is looked at anew."""
    findings = Findings().apply(found(1000))
    assert findings.open
    assert Findings.from_json(findings.to_json()) == findings
    assert not findings.apply(Event(2, 2000, kind, {"generation": 1})).open


def test_what_a_newer_coordinator_finds_is_skipped() -> None:
    """Its kinds are not known here."""
    event = found(1000)
    event.data["finding"] = "daydreaming"
    assert Findings().apply(event) == Findings()


def test_a_replaced_straggler_costs_its_slice_once() -> None:
    """Its Job is deleted though all its pods run, and its successor is left alone."""
    world = training()
    pod = world.pod("j-1-slice-1")["metadata"]["name"]
    lost = loss(world.now_ms, world.now_ms - 100, step=5)
    lost.data.update(cause="straggler", slice=1, host=0, pod=pod, isGivenUp=True)
    read(world, lost)
    assert world.deleted == ["Job j-1-slice-1"]
    assert world.status["incidents"][-1]["rung"] == "R2"
    assert "SliceRestarted" in world.notes
    world.run_pods()
    read(world, *start(world.now_ms, generation=2), first=60)
    assert world.pod("j-1-slice-1")["metadata"]["name"] != pod
    assert world.deleted == ["Job j-1-slice-1"]


@pytest.mark.parametrize(
    ("objective", "hours", "is_degraded"), [(0.9, 2, True), (0.9, 0, False), (0.01, 2, False)]
)
def test_goodput_below_the_objective_is_told_with_advice(
    objective: float, hours: int, *, is_degraded: bool
) -> None:
    """After the first hour; the message names what takes most of the rest."""
    world = training(objectives={"goodput": objective})
    begun = world.now_ms
    world.now_ms += hours * 3_600_000
    waited = (world.now_ms - begun) // 2
    read(world, progress(world.now_ms, 1, 100, inputWaitMs=waited), first=50)
    committed = Event(1, world.now_ms, EventKind.COMMITTED, {"step": 100})
    read(world, committed, first=60)
    expected = ("True", "GoodputBelowObjective") if is_degraded else ("False", "AsWanted")
    assert world.condition("Degraded") == expected
    if is_degraded:
        told_of = next(c for c in world.status["conditions"] if c["type"] == "Degraded")
        assert "most is input_wait: read ahead" in told_of["message"]


def test_low_mfu_is_told_when_it_lasts() -> None:
    """Ten minutes below the objective, with advice; and that it is over."""
    world = training(objectives={"mfu": 0.5})
    seen = []
    for number, giga_flops in enumerate((1, 1, 1, 700)):
        first = 1 + 10 * number
        size = {"tokens": 10_000_000, "flopsPerToken": giga_flops * 10**9}
        read(world, progress(world.now_ms, first, first + 9, **size), first=50 + 10 * number)
        seen.append(world.condition("Degraded")[1])
        world.now_ms += 700_000
    # The pace is known from the second stretch on.
    assert seen == ["AsWanted", "AsWanted", "LowMFU", "AsWanted"]
    assert world.memory.low_mfu_since_ms == 0
