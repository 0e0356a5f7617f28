"""Chips are counted from node to end, and cost what the table says."""

import itertools
import json
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.histories import CREATED_MS, event, histories, loss, progress, start
from tests.core.stories import told, training
from tests.core.world import job_object
from tpujob_agent.protocol import EventKind
from tpujob_operator.api.models import TPUTrainingJob, parse_job
from tpujob_operator.core import storedledger
from tpujob_operator.core.cost import cost_view, provisioning_of
from tpujob_operator.core.grouping import KIND_OF_TYPE, GoogleKind, grouped
from tpujob_operator.core.history import History
from tpujob_operator.core.kinds import POD
from tpujob_operator.core.ledger import Ledger
from tpujob_operator.core.observations import Fact, FactKind, Observation
from tpujob_operator.core.timetypes import TimeType
from tpujob_tpu.prices import usd_per_chip_hour
from tpujob_tpu.provisioning import Provisioning

T0 = CREATED_MS
HOUR_MS = 3_600_000


def _held(at_ms: int, chips: int) -> Fact:
    return Fact(at_ms, FactKind.CHIPS_HELD, {"chips": chips})


def _job(**spec: Any) -> TPUTrainingJob:
    return parse_job(job_object(**spec))


@given(histories(), st.integers(0, 10_000), st.integers(1, 64))
def test_chips_that_never_change_are_that_many_times_the_clock(
    seen: list[Observation], later_ms: int, chips: int
) -> None:
    """With a constant number of chips, each type has that many times its seconds in all."""
    seen = [item for item in seen if item.kind is not FactKind.CHIPS_HELD]
    now_ms = max([T0, *(item.at_ms for item in seen)]) + later_ms
    view = reduce(Ledger.apply, [_held(T0, chips), *seen], Ledger.start(T0)).view(now_ms)
    assert view.chip_ms == chips * view.wall_ms
    for kind in (TimeType.TEARDOWN, TimeType.COMPILE, TimeType.IMAGE, TimeType.DETECTION):
        assert view.chip_ms_by_type.get(kind, 0) == chips * view.by_type_ms.get(kind, 0)


@given(histories())
def test_chip_counters_never_fall(seen: list[Observation]) -> None:
    """However chips come and go, and whatever is told late: what is booked stays booked."""
    ledgers = list(itertools.accumulate(seen, Ledger.apply, initial=Ledger.start(T0)))
    for before, after in itertools.pairwise(ledgers):
        for kind, amount in before.closed_chips.items():
            assert after.closed_chips[kind] >= amount
        waiting = sum(segment.chip_ms for segment in after.unsettled)
        assert sum(after.closed_chips.values()) + waiting == after.chips.taken


def test_idle_spare_costs_and_an_unbound_pod_does_not() -> None:
    """Every pod with a node counts, whether it trains or not; pods that wait hold nothing."""
    world = training(spares=1)
    assert world.history.ledger.chips.held == 3 * 4
    name = next(name for name in world.objects[POD] if "slice-2" in name)
    world.objects[POD].pop(name)
    world.now_ms += 1_000
    world.step()
    assert world.history.ledger.chips.held == 2 * 4


def test_lost_steps_are_lost_chips() -> None:
    """Chip-seconds of steps settle and roll back with their seconds."""
    seen = [
        _held(T0, 8),
        *start(T0),
        progress(T0 + 1_040, 1, 10),
        event(T0 + 1_100, EventKind.COMMITTED, step=5),
        loss(T0 + 1_140, T0 + 1_140),
        *start(T0 + 1_200, generation=2, restored=5),
    ]
    ledger = reduce(Ledger.apply, seen, Ledger.start(T0))
    for kind in (TimeType.PRODUCTIVE, TimeType.ROLLBACK, TimeType.TEARDOWN):
        assert ledger.closed_chips.get(kind, 0) == 8 * ledger.closed.get(kind, 0)
    assert storedledger.from_json(json.loads(json.dumps(storedledger.to_json(ledger)))) == ledger


@pytest.mark.parametrize(
    ("chips", "usd_per_hour", "tokens_per_s", "expected"),
    [(512, 2.0, 125_000, 2.2756), (64, 8.0, 89_000, 1.598)],
)
def test_price_of_tokens(
    chips: int, usd_per_hour: float, tokens_per_s: int, expected: float
) -> None:
    """$1,024 an hour at 125,000 tokens/s is $2.28 a million, $512 at 89,000 is $1.60."""
    end_ms = T0 + HOUR_MS
    seen = [_held(T0, chips), *start(T0), progress(end_ms, 1, 2, tokens=3600 * tokens_per_s)]
    history = reduce(History.apply, seen, History.start(T0))
    own = {"v5e": {Provisioning.ON_DEMAND: usd_per_hour}}
    cost = cost_view(history, end_ms, _job(), own)
    assert cost.chip_hours == chips
    assert cost.usd == chips * usd_per_hour
    assert cost.usd_per_million_tokens == pytest.approx(expected, abs=1e-3)


def test_tokens_done_twice_are_bought_once_kept() -> None:
    """Half the steps lost: the kept tokens cost twice as much."""
    seen = [
        _held(T0, 4),
        *start(T0),
        progress(T0 + HOUR_MS, 1, 100, tokens=2_000_000),
        loss(T0 + HOUR_MS, T0 + HOUR_MS, step=100),
        *start(T0 + HOUR_MS, generation=2, restored=50),
    ]
    history = reduce(History.apply, seen, History.start(T0))
    cost = cost_view(history, T0 + HOUR_MS, _job(), {"v5e": {Provisioning.ON_DEMAND: 1.0}})
    assert cost.usd_per_million_tokens == cost.usd == 4.0


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({}, Provisioning.ON_DEMAND),
        ({"cloud.google.com/gke-spot": "true"}, Provisioning.SPOT),
        ({"cloud.google.com/gke-spot": "false"}, Provisioning.ON_DEMAND),
        ({"cloud.google.com/reservation-name": "mine"}, Provisioning.RESERVED),
        ({"cloud.google.com/gke-flex-start": "true"}, Provisioning.FLEX_START),
    ],
    ids=str,
)
def test_provisioning_is_read_off_the_node_selector(
    selector: dict[str, str], expected: Provisioning
) -> None:
    """GKE's own labels say how nodes are bought."""
    container = {"name": "trainer", "image": "i", "command": ["c"]}
    template = {"spec": {"containers": [container], "nodeSelector": selector}}
    obj = job_object(template=template)
    del obj["spec"]["trainer"]
    assert provisioning_of(parse_job(obj)) is expected


def test_provisioning_is_what_the_job_says() -> None:
    """The price follows, whatever the node selector."""
    job = _job(provisioning={"model": "FlexStart"})
    assert provisioning_of(job) is Provisioning.FLEX_START
    hour = _held(T0, 1), *start(T0), progress(T0 + HOUR_MS, 1, 2, tokens=1)
    history = reduce(History.apply, hour, History.start(T0))
    assert cost_view(history, T0 + HOUR_MS, job, {}).usd == 0.5 * 1.2


def test_own_prices_rule_and_unknown_ones_are_left_out() -> None:
    """An own on-demand price carries over to the other ways; what nobody knows has no cost."""
    own = {"v5e": {Provisioning.ON_DEMAND: 10.0}, "v5p": {Provisioning.SPOT: 1.5}}
    assert usd_per_chip_hour("v5e", Provisioning.FLEX_START, own) == 5.0
    assert usd_per_chip_hour("v5p", Provisioning.SPOT, own) == 1.5
    assert usd_per_chip_hour("v5p", Provisioning.ON_DEMAND, own) == 4.2
    assert usd_per_chip_hour("v7", Provisioning.ON_DEMAND) is None
    cost = cost_view(History.start(T0), T0, _job(accelerator="v7", topology="2x2x1"), own)
    assert cost.to_json() == {"chipHours": 0.0}


def test_status_tells_the_cost() -> None:
    """A job that trains has chip-hours and, by the list price, money in its status."""
    world = training()
    world.now_ms += HOUR_MS
    world.readings.append(told(progress(world.now_ms, 1, 5, tokens=1_000), first=20))
    world.step()
    cost = world.status["cost"]
    assert cost["chipHours"] == pytest.approx(8, abs=0.1)
    assert cost["usd"] == pytest.approx(cost["chipHours"] * 1.2, rel=1e-3)
    assert cost["usdPerMillionTokens"] > 0


def test_every_type_has_one_of_googles_kinds() -> None:
    """The second grouping loses no second."""
    assert KIND_OF_TYPE.keys() == set(TimeType)
    seconds = {kind.value: float(place) for place, kind in enumerate(TimeType)}
    found = grouped(seconds, unsettled=5.0)
    assert sum(found.values()) == sum(seconds.values()) + 5
    assert found[GoogleKind.NOT_COUNTED] == seconds["suspended"] + seconds["queued"]
