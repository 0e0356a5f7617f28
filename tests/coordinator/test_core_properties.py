"""Whatever happens in whatever order, these things hold."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.coordinator.simulation import SimAgent, Simulation, check_story, config
from tpujob_agent.protocol import ExitCode, Phase
from tpujob_coordinator.stages import Stage

Action = Callable[[Simulation, SimAgent], None]


def _step(simulation: Simulation, agent: SimAgent, *, obeys: bool = False) -> None:
    step = agent.report.step + 10 if agent.report else 0
    agent.advance(
        simulation.now_ms,
        phase=Phase.TRAIN,
        phase_at_ms=simulation.now_ms,
        restored_step=0,
        first_step=1,
        step=step,
        committed_step=step - 5,
        obeys_saves=obeys,
    )


def _restore(simulation: Simulation, agent: SimAgent) -> None:
    now_ms, step = simulation.now_ms, simulation.core.step
    agent.advance(now_ms, phase=Phase.COMPILE, phase_at_ms=now_ms, restored_step=step)


def _save_and_leave(simulation: Simulation, agent: SimAgent) -> None:
    agent.advance(simulation.now_ms, committed_step=agent.report.step if agent.report else 0)
    agent.end(simulation.now_ms, exit_code=ExitCode.PREEMPTED)


ACTIONS: dict[str, Action] = {
    "deliver to": lambda s, a: s.deliver_to(a),
    "deliver from": lambda s, a: s.deliver_from(a),
    "reap": lambda s, a: a.reap(s.now_ms),
    "killed": lambda s, a: a.end(s.now_ms, signal=9),
    "peer lost": lambda s, a: a.end(s.now_ms, exit_code=17),
    "user error": lambda s, a: a.end(s.now_ms, exit_code=1),
    "step": _step,
    "step of one that obeys": lambda s, a: _step(s, a, obeys=True),
    "restored": _restore,
    "saved and left": _save_and_leave,
    "told to go": lambda s, a: a.announce(s.now_ms),
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


@settings(max_examples=150)
@given(STORIES)
def test_never_two_generations_and_always_a_next_one(story: list[tuple[str, int]]) -> None:
    """No order of faults runs two worlds at once, and afterwards the job always goes on."""
    simulation = Simulation(config())
    simulation.start()
    _play(simulation, story)
    check_story(simulation.events())
    simulation.calm()
    check_story(simulation.events())
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
