"""What a release stores is read by the next one, and by the one before after a roll-back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from tests.core.histories import CREATED_MS, event, histories, loss, progress, start
from tests.core.stories import told, training
from tests.core.world import World
from tpujob_agent.protocol import Budget, EventKind
from tpujob_operator.core.forms import FORMS, Forms, Step
from tpujob_operator.core.history import History
from tpujob_operator.core.kinds import JOB_SET
from tpujob_operator.core.memory import Memory, Replacements
from tpujob_operator.core.observations import Observation
from tpujob_operator.core.recoveries import Stage
from tpujob_operator.core.timetypes import TimeType

T0 = CREATED_MS
#: States as releases stored them: one file for each form that there ever was.
STORED = Path(__file__).parent / "forms"


def test_every_form_has_a_stored_state() -> None:
    """A new form comes with a state of it, and those of the forms before stay."""
    assert {int(path.stem) for path in STORED.glob("*.json")} == set(range(1, FORMS.newest + 1))
    assert FORMS.newest - FORMS.written in (0, 1)
    assert set(FORMS.steps) == set(range(1, FORMS.newest))


@pytest.mark.parametrize("form", range(1, FORMS.newest + 1))
def test_a_stored_state_of_each_form_is_read(form: int) -> None:
    """Nothing of what a job has been through is lost on the way."""
    raw = FORMS.read(json.loads((STORED / f"{form}.json").read_text()))
    history, memory = History.from_json(raw), Memory.from_json(raw["operator"])
    view = history.ledger.view(T0 + 5_000)
    assert sum(view.by_type_ms.values()) + view.unsettled_ms == view.wall_ms == 5_000
    assert history.ledger.closed[TimeType.DETECTION] == 200
    assert history.ledger.closed[TimeType.ROLLBACK] == 760
    (incident,) = history.incidents.newest
    assert (incident.node, incident.resumed_step, incident.is_open) == ("n", 5, False)
    assert history.incidents.counts == {"process/R0": 1}
    assert history.incidents.used == {Budget.PROCESS: 1}
    assert history.recoveries.stages[Stage.TOTAL].sum_ms == 3_000
    assert (history.progress.step, history.progress.committed_step) == (6, 5)
    assert (history.cursor.epoch, history.cursor.seq) == ("e", 20)
    assert (history.gave_up, history.gave_up_cause) == ("no more", "process")
    assert memory.replacements == {"j-1-slice-0": Replacements(2, T0)}


def stored_now() -> dict[str, Any]:
    """What this release stores of the life in ``STORED``; for the file of a new form."""
    seen: list[Observation] = [
        *start(T0),
        progress(T0 + 1_040, 1, 10, tokens=80),
        event(T0 + 1_100, EventKind.COMMITTED, step=5, blockedMs=0, lagMs=400),
        loss(T0 + 1_500, T0 + 1_300, step=10),
        event(T0 + 2_500, EventKind.GENERATION_STOPPED, generation=1),
        *start(T0 + 3_500, generation=2, restored=5),
        progress(T0 + 4_300, 6, 6, generation=2),
        event(T0 + 4_400, EventKind.GAVE_UP, cause="process", message="no more"),
    ]
    history = History.start(T0).read(told(*seen))
    memory = Memory(replacements={"j-1-slice-0": Replacements(2, T0)})
    return dict(FORMS.write({**history.to_json(), "operator": memory.to_json()}))


# ---- the next form, as a later release may make it: the coordinator's last words are one object


def _up(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    others = {name: value for name, value in raw.items() if not name.startswith("gaveUp")}
    return {**others, "end": {"message": raw["gaveUp"], "cause": raw["gaveUpCause"]}}


def _down(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    others = {name: value for name, value in raw.items() if name != "end"}
    return {**others, "gaveUp": raw["end"]["message"], "gaveUpCause": raw["end"]["cause"]}


_STEPS = {1: Step(_up, _down)}
NOW = Forms(newest=1, written=1)
NEXT = Forms(newest=2, written=1, steps=_STEPS)
AFTER_NEXT = Forms(newest=2, written=2, steps=_STEPS)


@given(histories())
def test_releases_take_over_from_each_other_and_back(seen: list[Observation]) -> None:
    """Each reads what its neighbours store, and nothing changes on the way."""
    raw = json.loads(json.dumps(reduce(History.apply, seen, History.start(T0)).to_json()))
    for before, after in ((NOW, NEXT), (NEXT, AFTER_NEXT), (AFTER_NEXT, NEXT), (NEXT, NOW)):
        stored = json.loads(json.dumps(before.write(before.read(raw))))
        raw = after.write(after.read(stored))
        assert raw["form"] == after.written
        assert after.read(raw) == after.read(stored)
    assert History.from_json(raw) == reduce(History.apply, seen, History.start(T0))


def test_a_form_that_is_too_new_is_refused() -> None:
    """A roll-back over two releases is told, see ``HistoryLost``; so is nonsense."""
    raw = NEXT.read(stored_now())
    with pytest.raises(ValueError, match="form 2, this operator reads up to 1"):
        NOW.read(raw)
    for nonsense in (None, 0, "1", 1.5):
        with pytest.raises(ValueError, match="this operator reads up to 2"):
            NEXT.read({**raw, "form": nonsense})
    with pytest.raises(ValueError, match="damaged"):
        NEXT.read({"form": 1})


def _replaced_by(world: World, forms: Forms, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another release takes over: it knows what is in the status, and no more."""
    for module in ("core.status", "shell.jobstate"):
        monkeypatch.setattr(f"tpujob_operator.{module}.FORMS", _Native(forms))
    world.restart_operator()
    assert not world.unread


class _Native:
    """The forms of a release whose classes, which are this one's, are of form 1."""

    def __init__(self, forms: Forms) -> None:
        self._forms = forms

    def read(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        newest = self._forms.read(raw)
        return _down(newest) if self._forms.newest > 1 else newest

    def write(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        newest = {**_up(raw), "form": 2} if self._forms.newest > 1 else raw
        return self._forms.write(newest)


def test_a_job_trains_through_releases_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pod restarts, no incident, sums exact; only the stored form changes."""
    world = training()
    before = (sorted(world.objects[JOB_SET]), world.deleted[:])
    forms = [NEXT, AFTER_NEXT, NEXT, NOW]
    for number, release in enumerate(forms, 1):
        _replaced_by(world, release, monkeypatch)
        steps = progress(world.now_ms, number, number)
        world.readings.append(told(steps, first=20 + number))
        world.now_ms += 5_000
        world.settle()
        assert world.status["step"] == number
        assert ("end" in world.status["ledger"]) is (release.written == 2)
    assert (sorted(world.objects[JOB_SET]), world.deleted) == before
    assert not world.status.get("incidents")
    assert "HistoryLost" not in world.notes
    goodput = world.status["goodput"]
    total = sum(goodput["seconds"].values()) + goodput["unsettledSeconds"]
    assert total == pytest.approx(goodput["wallSeconds"])
