"""Whatever somebody has written into ``status.ledger``, the job goes on and its times add up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.core.histories import event, loss, progress, start
from tests.core.stories import told, training
from tests.core.world import World
from tpujob_agent.preflight import Answer
from tpujob_agent.protocol import EventKind
from tpujob_operator.core.checks import Check
from tpujob_operator.core.findings import Findings
from tpujob_operator.core.kinds import JOB_SET
from tpujob_operator.core.memory import LostPod, Memory, Replacements
from tpujob_operator.core.suspects import Suspect
from tpujob_operator.shell.jobstate import JobState

Path = tuple[str | int, ...]
_NUMBERS = st.sampled_from([-1, 0, 1, 7, 2**31, 2**53, 2**63, 10**300, 0.5, 1e300, -1e300])
_VALUES = st.one_of(
    st.none(), st.booleans(), _NUMBERS, st.text(max_size=8),
    st.lists(_NUMBERS, max_size=8), st.dictionaries(st.text(max_size=8), _NUMBERS, max_size=2),
)  # fmt: skip


def _rich() -> World:
    """A job that trains, in whose stored state every part has something."""
    world = training()
    now_ms = world.now_ms
    world.readings.append(told(progress(now_ms, 1, 4), loss(now_ms + 50, now_ms + 40), first=30))
    world.now_ms += 1_000
    world.settle()
    raw = world.obj["status"]["ledger"]
    found: dict[str, Any] = {
        "finding": "straggler",
        "isOpen": True,
        "slice": 0,
        "host": 0,
        "node": "n",
    }
    found |= {"signal": "steps", "ratio": 1.5, "message": "slow"}
    findings = Findings().apply(event(now_ms, EventKind.FINDING, **found))
    memory = Memory(
        replacements={"j-1-slice-0": Replacements(2, now_ms)},
        lost_pods=(LostPod(now_ms, 0, 0, "n", "p"),),
        dead_nodes=(Suspect("n", "silent", now_ms, now_ms + 1),),
        checks=(Check("d", now_ms, Answer.FITS.value),),
    )
    raw |= {"findings": findings.to_json(), "operator": memory.to_json()}
    raw["recoveries"] = {"stages": {"total": [0, 1, 0, 0, 0, 0, 3_000]}, "before": {"restore": 3}}
    assert not JobState.of(world.obj).unread
    return world


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _paths(part, (*path, key))


def _edit(raw: Any, path: Path, value: Any) -> Any:
    """Put a value into it; what was there before."""
    for key in path[:-1]:
        raw = raw[key]
    before, raw[path[-1]] = raw[path[-1]], value
    return before


def _is_of_type(value: Any, other: Any) -> bool:
    """Whether a reader could take one for the other; a flag is 0 or 1."""
    numbers = (bool, int, float)
    return type(value) is type(other) or (isinstance(value, numbers) and isinstance(other, numbers))


def _assert_adds_up(world: World) -> None:
    goodput = world.status["goodput"]
    total = sum(goodput["seconds"].values()) + goodput["unsettledSeconds"]
    assert total == pytest.approx(goodput["wallSeconds"], abs=0.001)


_PATHS = sorted(_paths(_rich().obj["status"]["ledger"]), key=str)
#: What nobody has told yet may be null; the form has a test of its own.
_OPEN = {"loss", "exit_code", "signal", "form"}


@settings(max_examples=60)
@given(path=st.sampled_from(_PATHS), value=_VALUES)
@example(path=("operator", "replacements", "j-1-slice-0"), value="")
def test_a_value_of_another_type_is_told_and_the_job_goes_on(path: Path, value: Any) -> None:
    """One event says which; nothing is made again, and what follows is accounted."""
    world = _rich()
    jobsets = sorted(world.objects[JOB_SET])
    before = _edit(world.obj["status"]["ledger"], path, value)
    assume(path[-1] not in _OPEN and not _is_of_type(before, value))
    world.restart_operator()
    assert "damaged" in world.unread
    world.now_ms += 5_000
    world.readings.append(told(*start(world.now_ms), first=50))
    world.rest()
    assert world.notes.count("HistoryLost") == 1
    assert sorted(world.objects[JOB_SET]) == jobsets
    assert not JobState.of(world.obj).unread
    _assert_adds_up(world)


@settings(max_examples=60)
@given(path=st.sampled_from(_PATHS), value=_VALUES)
def test_no_value_stops_the_passes(path: Path, value: Any) -> None:
    """Whether it is believed or not, the passes come to an end and the times add up."""
    world = _rich()
    _edit(world.obj["status"]["ledger"], path, value)
    world.restart_operator()
    world.now_ms += 5_000
    world.readings.append(told(*start(world.now_ms), first=50))
    world.rest()
    _assert_adds_up(world)
