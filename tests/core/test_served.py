"""A status beside a CRD of another release: what it lacks is left out, and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.core.histories import event, loss, progress
from tests.core.stories import told, training
from tests.core.world import World
from tpujob_agent.protocol import EventKind
from tpujob_operator.api.crd import openapi_schema
from tpujob_operator.core.served import fitted, lacks

OURS = openapi_schema()["properties"]["status"]
#: What an operator cannot do without: there since the first release.
_NEEDED = {"attempt", "conditions", "ledger"}


def schema() -> dict[str, Any]:
    """A copy to take something from."""
    return copy.deepcopy(OURS)


def trained() -> World:
    """A job with steps, a checkpoint and an incident in its status."""
    world = training()
    at = world.now_ms
    saved = event(at, EventKind.COMMITTED, step=5)
    lost = loss(at, at - 100, step=5)
    world.readings.append(told(progress(at - 500, 1, 5), saved, lost, first=20))
    world.now_ms += 5_000
    world.settle()
    return world


def test_the_own_schema_lacks_nothing() -> None:
    """Every status fits as it is, and a CRD that has more is no trouble."""
    status = trained().status
    assert fitted(status, OURS) == status
    newer = schema()
    newer["properties"]["ofANewer"] = {"type": "string"}
    newer["properties"]["state"]["enum"] = ["OfANewer", *OURS["properties"]["state"]["enum"]]
    assert not [*lacks(OURS, newer)]
    assert fitted(status, newer) == status


def test_fields_and_words_that_it_lacks_are_named_and_left_out() -> None:
    """At any depth; an object that has lost what is asked for goes as a whole."""
    status, older = trained().status, schema()
    del older["properties"]["restarts"]
    del older["properties"]["goodput"]["properties"]["ratio"]
    older["properties"]["state"]["enum"].remove("Recovering")
    del older["properties"]["incidents"]["items"]["properties"]["cause"]
    assert {*lacks(OURS, older)} >= {
        "status.restarts", "status.goodput.ratio", "status.state=Recovering",
        "status.incidents[].cause",
    }  # fmt: skip
    made = fitted(status, older)
    assert status["state"] == "Recovering"
    assert "restarts" not in made
    assert "state" not in made
    assert made["ledger"] == status["ledger"]
    assert made["conditions"] == status["conditions"]


@pytest.mark.parametrize("name", sorted({*OURS["properties"]} - _NEEDED))
def test_an_operator_comes_to_rest_beside_an_older_crd(name: str) -> None:
    """What the API server drops is not written for ever; the job itself is looked after."""
    older = schema()
    del older["properties"][name]
    world = World(status_schema=older)
    world.settle()
    world.run_pods()
    world.now_ms += 5_000
    assert world.settle().is_empty
    assert name not in world.status
    assert len(world.objects) == 3
