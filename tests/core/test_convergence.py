"""Whatever happens, the operator comes to rest, and never runs two attempts at once."""

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.checks import DOES_NOT_FIT, FITS
from tests.core.histories import event, loss, start
from tests.core.modelapi import Fault
from tests.core.stories import told
from tests.core.world import START_MS, World, job_object
from tests.specs import OWN_PROGRAM
from tpujob_agent.notices import Notice
from tpujob_agent.protocol import Cause, EventKind
from tpujob_operator.core.kinds import JOB_SET, POD
from tpujob_operator.core.nodes import NodeView

Happening = Callable[[World], None]


def _suspend(world: World) -> None:
    world.obj["spec"]["suspend"] = True


def _resume(world: World) -> None:
    world.obj["spec"]["suspend"] = False


def _run_pods(world: World) -> None:
    world.run_pods()


def _controllers(world: World) -> None:
    world.controllers()


def _lose_pod(world: World) -> None:
    for pod in list(world.objects[POD].values())[-1:]:
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


def _fail_pod(world: World) -> None:
    for pod in list(world.objects[POD].values())[:1]:
        pod["status"] = {"phase": "Failed"}


def _lose_node(world: World) -> None:
    world.lose_node()


def _regain_node(world: World) -> None:
    world.dead_nodes.clear()
    world.nodes["node"] = NodeView("node", "u", START_MS, is_ready=True)


def _announce_node(world: World) -> None:
    notice = Notice("node", Cause.MAINTENANCE, 0, "it goes")
    world.nodes["node"] = NodeView("node", "u", START_MS, is_ready=True, notice=notice)


def _find_no_place(world: World) -> None:
    world.find_no_place()


def _fail_jobset(world: World) -> None:
    world.end_jobset("Failed", "broken")


def _complete_jobset(world: World) -> None:
    world.end_jobset("Completed")


def _delete_jobset(world: World) -> None:
    for jobset in list(world.objects[JOB_SET].values()):
        world.remove(JOB_SET, jobset["metadata"]["name"], jobset["metadata"]["uid"])


def _restart(world: World) -> None:
    world.restart_operator()


def _lose_jobset_kind(world: World) -> None:
    world.has_jobset = not world.has_jobset


def _train(world: World) -> None:
    generation = world.history.generation + 1
    world.readings.append(told(*start(world.now_ms, generation), epoch=str(world.now_ms)))


def _lose_trainer(world: World) -> None:
    seen = loss(world.now_ms, world.now_ms - 50, generation=world.history.generation)
    world.readings.append(told(seen, epoch=str(world.now_ms)))


def _finish(world: World) -> None:
    seen = event(world.now_ms, EventKind.FINISHED, step=9)
    world.readings.append(told(seen, epoch=str(world.now_ms)))


def _change_spec(world: World) -> None:
    world.obj["spec"]["slices"] = 3 - world.obj["spec"]["slices"]


def _change_recovery(world: World) -> None:
    if not world.obj["spec"].get("template"):
        return
    others = {"InPlace": "Recreate", "Recreate": "InPlace"}
    now = world.obj["spec"].get("recovery", {"pods": "InPlace"})["pods"]
    world.obj["spec"]["recovery"] = {"pods": others[now]}


def _ask_first(world: World) -> None:
    if not world.obj["spec"].get("trainer"):
        return
    is_asked = world.obj["spec"].get("preflight") == "Compile"
    world.obj["spec"]["preflight"] = "None" if is_asked else "Compile"


def _answer(world: World) -> None:
    world.answer = FITS


def _advise_against(world: World) -> None:
    world.answer = DOES_NOT_FIT


def _check_long(world: World) -> None:
    world.answer = None


HAPPENINGS: tuple[Happening, ...] = (
    _change_spec,
    _change_recovery,
    _suspend,
    _resume,
    _run_pods,
    _controllers,
    _lose_pod,
    _fail_pod,
    _lose_node,
    _regain_node,
    _announce_node,
    _find_no_place,
    _fail_jobset,
    _complete_jobset,
    _delete_jobset,
    _restart,
    _lose_jobset_kind,
    _train,
    _lose_trainer,
    _finish,
    _ask_first,
    _answer,
    _advise_against,
    _check_long,
)
#: Pods are made anew of the one; the other is checked and compiled ahead.
PROGRAMS = st.sampled_from([OWN_PROGRAM, {"checkpoint": {"directory": "gs://bucket/j"}}])
#: Any write may fail, and the answer to one that has happened may be lost.
_REFUSED = st.builds(Fault, st.sampled_from([403, 404, 409, 413, 422, 429]))
_LOST = st.builds(Fault, st.sampled_from([0, 500, 503]), st.booleans(), st.booleans())
FAULTS = st.dictionaries(st.integers(0, 4), st.one_of(_REFUSED, _LOST), min_size=1, max_size=3)
#: What happens, how long it takes, after which write of its pass the operator crashes, and which
#: of its writes fail.
STORIES = st.lists(
    st.tuples(
        st.sampled_from(HAPPENINGS),
        st.integers(0, 700_000),
        st.one_of(st.none(), st.none(), st.integers(0, 4)),
        st.one_of(st.just({}), FAULTS),
    ),
    max_size=25,
)
Story = list[tuple[Happening, int, int | None, dict[int, Fault]]]


def _check(world: World) -> None:
    assert len(world.live_attempts()) <= 1
    assert len(world.objects[JOB_SET]) <= 1
    goodput = world.status.get("goodput")
    if goodput:
        total = sum(goodput["seconds"].values()) + goodput["unsettledSeconds"]
        assert round(total, 3) == round(goodput["wallSeconds"], 3)


def _play(world: World, story: Story) -> None:
    for happening, passed_ms, crash_after, faults in story:
        happening(world)
        world.now_ms += passed_ms
        ended = {world.status.get("state")} & {"Succeeded", "Failed"}
        before = _counts(world)
        world.step(crash_after, faults)
        _check(world)
        assert all(then <= now for then, now in zip(before, _counts(world), strict=True))
        if ended:
            assert {world.status["state"]} == ended


def _counts(world: World) -> tuple[int, ...]:
    """What never falls, whichever writes are lost."""
    return (world.status.get("attempt", 0), world.status.get("restarts", 0))


def _let_rest(world: World) -> None:
    world.has_jobset = True
    world.answer = world.answer or FITS
    world.now_ms += 700_000
    world.rest()


@settings(max_examples=200)
@given(PROGRAMS, STORIES)
def test_every_story_comes_to_rest(program: dict[str, Any], story: Story) -> None:
    """After any story the second plan is empty, and all invariants held on the way."""
    world = World(obj=job_object(**program))
    _play(world, story)
    _let_rest(world)
    _check(world)
    for _ in range(3):
        world.now_ms += 60_000
        assert world.step().is_empty


@settings(max_examples=100)
@given(PROGRAMS, STORIES, st.integers(0, 10))
def test_operator_restart_changes_no_decision(
    program: dict[str, Any], story: Story, cut: int
) -> None:
    """An operator that starts anew at rest plans nothing but the repair of what it cannot see."""
    world = World(obj=job_object(**program))
    _play(world, story[:cut])
    _let_rest(world)
    before = dict(world.status)
    world.restart_operator()
    plan = world.step()
    assert plan.status is None
    assert world.status == before
    assert not any("JobSet" in action.what for action in plan.actions if hasattr(action, "what"))
