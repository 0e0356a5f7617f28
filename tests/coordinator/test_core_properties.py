"""Whatever happens in whatever order, these things hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.coordinator.simulation import SimAgent, Simulation, config
from tpujob_agent.protocol import Event, EventKind, Phase
from tpujob_coordinator.stages import Stage

Action = Callable[[Simulation, SimAgent], None]


def _step(simulation: Simulation, agent: SimAgent) -> None:
    step = agent.report.step + 10 if agent.report else 0
    agent.advance(
        simulation.now_ms,
        phase=Phase.TRAIN,
        phase_at_ms=simulation.now_ms,
        restored_step=0,
        first_step=1,
        step=step,
        committed_step=step - 5,
    )


ACTIONS: dict[str, Action] = {
    "deliver to": lambda s, a: s.deliver_to(a),
    "deliver from": lambda s, a: s.deliver_from(a),
    "reap": lambda s, a: a.reap(s.now_ms),
    "killed": lambda s, a: a.end(s.now_ms, signal=9),
    "peer lost": lambda s, a: a.end(s.now_ms, exit_code=17),
    "user error": lambda s, a: a.end(s.now_ms, exit_code=1),
    "step": _step,
    "container restarts": lambda s, a: s.connect(s.boot(a.place)),
    "pod replaced": lambda s, a: s.connect(s.boot(a.place, new_pod=True)),
    "disconnects": lambda s, a: s.disconnect(a),
    "reconnects": lambda s, a: s.connect(a),
    "leaves": lambda s, a: a.leave(s.now_ms),
    "a second": lambda s, _: s.tick(1000),
    "coordinator restarts": lambda s, _: s.restart_coordinator(),
    "everything arrives": lambda s, _: s.settle(),
}
STORIES = st.lists(
    st.tuples(st.sampled_from(sorted(ACTIONS)), st.integers(min_value=0, max_value=3)), max_size=60
)


def _play(simulation: Simulation, story: list[tuple[str, int]]) -> None:
    for name, index in story:
        ACTIONS[name](simulation, simulation.agents[simulation.places[index]])
        live = {a.live_generation for a in simulation.agents.values()} - {0}
        assert len(live) <= 1, f"two generations run at once: {live}"


def _check(events: list[Event]) -> None:
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert all(a.at_ms <= b.at_ms for a, b in itertools.pairwise(events))
    generations = [e.data["generation"] for e in events if e.kind is EventKind.GENERATION_STARTED]
    assert generations == sorted(set(generations))
    stories = [e for e in events if e.kind in _LIFE]
    for event, following in itertools.pairwise(stories):
        assert following.kind in _LIFE[event.kind], f"{event} is followed by {following}"


_LIFE = {
    EventKind.GENERATION_STARTED: {EventKind.LOSS, EventKind.FINISHED},
    EventKind.LOSS: {EventKind.GENERATION_STOPPED},
    EventKind.GENERATION_STOPPED: {EventKind.GENERATION_STARTED, EventKind.GAVE_UP},
    EventKind.FINISHED: set(),
    EventKind.GAVE_UP: set(),
}


@settings(max_examples=150)
@given(STORIES)
def test_never_two_generations_and_always_a_next_one(story: list[tuple[str, int]]) -> None:
    """No order of faults runs two worlds at once, and afterwards the job always goes on."""
    simulation = Simulation(config())
    simulation.start()
    _play(simulation, story)
    _check(simulation.events())
    simulation.calm()
    _check(simulation.events())
    assert simulation.core.stage is Stage.RUNNING
    assert simulation.core.world is not None
    live = {agent.live_generation for agent in simulation.agents.values()}
    assert live == {simulation.core.world.generation}


@settings(max_examples=50)
@given(STORIES)
def test_generations_only_grow_over_coordinators(story: list[tuple[str, int]]) -> None:
    """A new coordinator's generations are above all that any living agent has seen."""
    simulation = Simulation(config(slices=2, hosts=2))
    simulation.start()
    newest = dict.fromkeys(simulation.places, 0)
    for name, index in story:
        _play(simulation, [(name, index)])
        for place, agent in simulation.agents.items():
            seen = newest[place] if agent.newest else 0  # an agent that restarts begins at 0
            assert agent.newest >= seen
            newest[place] = agent.newest
