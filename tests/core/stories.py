"""Worlds that have come some way, for tests to go on from."""

from typing import Any

from tests.core.histories import start
from tests.core.world import World, job_object
from tpujob_agent.protocol import Event, EventKind
from tpujob_operator.core.observations import Observation
from tpujob_operator.core.timeline import TimelineBatch


def told(*observations: Observation, epoch: str = "e", first: int = 1) -> TimelineBatch:
    """A stretch of a timeline, numbered."""
    events = tuple(
        Event(first + i, seen.at_ms, EventKind(seen.kind), dict(seen.data))
        for i, seen in enumerate(observations)
    )
    return TimelineBatch(epoch, events, events[-1].at_ms)


def settled(**spec: Any) -> World:
    """A world in which a job has been made and its pods run."""
    world = World(obj=job_object(**spec))
    world.settle()
    world.run_pods()
    world.now_ms += 5_000
    world.settle()
    return world


def training(**spec: Any) -> World:
    """A world in which a job trains."""
    world = settled(**spec)
    world.readings.append(told(*start(world.now_ms)))
    world.now_ms += 5_000
    world.settle()
    return world
