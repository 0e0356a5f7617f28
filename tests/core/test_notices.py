"""Nodes that are taken away: what their objects say, before and afterwards."""

from typing import Any

import pytest

from tests.core.histories import event, loss
from tests.core.modelapi import Fault
from tests.core.stories import told, training
from tests.core.world import START_MS, World
from tpujob_agent.notices import Notice
from tpujob_agent.protocol import Cause, EventKind
from tpujob_operator.api.base import rfc3339
from tpujob_operator.core.decide import decide
from tpujob_operator.core.nodes import NodeView
from tpujob_operator.core.plan import Tell
from tpujob_operator.core.snapshot import Told

SPOT = {"cloud.google.com/gke-spot": "true"}
TAINT = {"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}
SHUTDOWN = {"type": "Ready", "status": "False", "message": "node is shutting down"}
END, END_MS = "2026-09-28T00:00:00Z", 1_790_553_600_000
PLANNED = "cloud.google.com/scheduled-maintenance-time"


def node(
    labels: dict[str, str] | None = None,
    taints: list[dict[str, str]] | None = None,
    ready: dict[str, str] | None = None,
    created_ms: int = START_MS,
    end: str = "",
) -> NodeView:
    """The node that all pods of a ``World`` run on."""
    return NodeView.of(
        {
            "metadata": {
                "name": "node",
                "uid": "u",
                "creationTimestamp": rfc3339(created_ms),
                "labels": labels or {},
                "annotations": {"node.gke.io/machine-termination-datetime": end} if end else {},
            },
            "spec": {"taints": taints or []},
            "status": {"conditions": [ready] if ready else []},
        }
    )


@pytest.mark.parametrize(
    ("given", "cause", "at_ms"),
    [
        ({"taints": [TAINT]}, Cause.MAINTENANCE, 0),
        ({"taints": [TAINT], "labels": SPOT}, Cause.PREEMPTION, 0),
        ({"labels": {"cloud.google.com/active-node-maintenance": "ONGOING"}}, "maintenance", 0),
        ({"labels": {"cloud.google.com/perform-maintenance": "true"}}, "maintenance", 0),
        ({"labels": {PLANNED: "1790003600"}}, Cause.MAINTENANCE, 1_790_003_600_000),
        ({"ready": SHUTDOWN}, Cause.MAINTENANCE, 0),
        ({"ready": SHUTDOWN, "labels": SPOT}, Cause.PREEMPTION, 0),
        ({"taints": [TAINT], "labels": {PLANNED: "1790003600"}}, Cause.MAINTENANCE, 0),
        ({"end": END}, Cause.PREEMPTION, END_MS),
        ({"end": END, "labels": {PLANNED: "1790003600"}}, "maintenance", 1_790_003_600_000),
        ({"end": END, "labels": {PLANNED: "1799999999"}}, Cause.PREEMPTION, END_MS),
        ({"end": END, "taints": [TAINT]}, Cause.MAINTENANCE, 0),
    ],
)
def test_each_signal_is_a_notice(given: dict[str, Any], cause: str, at_ms: int) -> None:
    """With its cause and time; the most urgent one counts."""
    notice = node(**given).notice
    assert notice is not None
    assert (notice.node, notice.cause, notice.at_ms) == ("node", cause, at_ms)


@pytest.mark.parametrize(
    "labels", [{}, SPOT, {PLANNED: "soon"}, {"cloud.google.com/active-node-maintenance": "DONE"}]
)
@pytest.mark.parametrize("end", ["", "soon", "2026-09-28T00:00:00"])
def test_other_nodes_have_none(labels: dict[str, str], end: str) -> None:
    """Also where the value of a label or annotation makes no sense."""
    assert node(labels, end=end).notice is None


def with_node(**given: Any) -> World:
    """A job that trains on a node."""
    world = training()
    world.nodes["node"] = node(**given)
    return world


def test_the_coordinator_is_told_once_and_again_when_it_changes() -> None:
    """Also when it is another coordinator, and when a notice is taken back."""
    world = with_node(labels={PLANNED: "1790003600"})
    world.settle()
    (notice,) = world.told.notices
    assert (notice.node, world.told.epoch) == ("node", "e")
    assert world.notes.count("HostLeaving") == 1
    world.nodes["node"] = node(taints=[TAINT])
    world.settle()
    assert world.told.notices[0].at_ms == 0
    assert world.notes.count("HostLeaving") == 2
    world.readings.append(told(loss(world.now_ms, world.now_ms), epoch="f"))
    world.settle()
    assert world.told.epoch == "f"
    world.nodes["node"] = node()
    world.settle()
    assert (world.told.epoch, world.told.notices) == ("f", ())
    assert world.notes.count("HostLeaving") == 2


def test_a_coordinator_that_is_too_old_to_listen_is_told_once() -> None:
    """It will never understand: to tell it with every pass helps nobody."""
    world = with_node(labels={PLANNED: "1790003600"})
    tells = 0
    for _ in range(5):
        has_status = decide(world.snapshot(), world.now_ms).status is not None
        plan = world.step(faults={int(has_status): Fault(404)})
        tells += sum(isinstance(action, Tell) for action in plan.actions)
        world.now_ms += 5_000
    assert tells == 1
    assert [notice.node for notice in world.told.notices] == ["node"]


def test_changed_budgets_are_told_to_whoever_counts() -> None:
    """Each coordinator hears of them, since it begins with those of the attempt's start."""
    world = training()
    assert world.told == Told()
    world.obj["spec"]["recovery"] = {"budgets": {"process": 99}}
    world.settle()
    assert world.told.budgets["process"] == 99
    assert world.notes.count("SpecChanged") == 1
    world.readings.append(told(event(world.now_ms, EventKind.COORDINATOR_STARTED), epoch="f"))
    world.settle()
    assert (world.told.epoch, world.told.budgets["process"]) == ("f", 99)
    assert world.notes.count("SpecChanged") == 1
    assert world.status["attempt"] == 1


def test_nobody_is_told_while_no_coordinator_can_be_read() -> None:
    """The wish waits, and the pass asks for nothing."""
    world = with_node(taints=[TAINT])
    world.silent_since_ms = world.now_ms
    world.settle()
    assert world.told == Told()


def lost(world: World, **data: Any) -> None:
    """A host falls silent; nobody has said anything before."""
    seen = loss(world.now_ms, world.now_ms, cause="node", node="node", **data)
    world.readings.append(told(seen, first=20))
    world.settle()


def cause_and_message(world: World) -> tuple[str, str]:
    """Of the only incident."""
    (incident,) = world.status["incidents"]
    return incident["cause"], incident["message"]


def test_a_spot_node_that_is_gone_was_preempted() -> None:
    """The Node object may be deleted some time after the loss; status tells both."""
    world = with_node(labels=SPOT)
    lost(world)
    assert cause_and_message(world) == ("node", "killed")
    charged = {name: one["used"] for name, one in world.status["budgets"].items()}
    assert (charged["infrastructure"], charged["noProgress"]) == (1, 1)
    [onset_ms] = [one.at_ms for one in world.history.incidents.newest]
    world.now_ms += 60_000
    world.nodes["node"] = NodeView("node", "u", START_MS, is_spot=True, is_gone=True)
    world.settle()
    cause, message = cause_and_message(world)
    assert cause == "preemption"
    assert "spot node has been taken away" in message
    corrected = {name: one["used"] for name, one in world.status["budgets"].items()}
    assert corrected == charged | {"noProgress": 0}
    assert world.told.taken_away == (onset_ms,)
    assert world.history.incidents.counts == {"preemption/R2": 1}


def test_only_losses_since_the_newest_commit_are_corrected() -> None:
    """A late explanation of an older one takes nothing off what came after it."""
    world = with_node(labels=SPOT)
    lost(world)
    committed = event(world.now_ms + 1, EventKind.COMMITTED, step=1, committedAtMs=world.now_ms + 1)
    world.now_ms += 10_000
    other = loss(world.now_ms, world.now_ms, cause="node", node="other")
    world.readings.append(told(committed, other, first=21))
    world.settle()
    world.nodes["node"] = NodeView("node", "u", START_MS, is_spot=True, is_gone=True)
    world.settle()
    assert [one["cause"] for one in world.status["incidents"]] == ["preemption", "node"]
    assert world.status["budgets"]["noProgress"]["used"] == 1
    assert world.told.taken_away == ()


@pytest.mark.parametrize(
    ("view", "cause"),
    [
        (NodeView("node", "u", START_MS, is_gone=True), "node"),
        (NodeView("node", "v", START_MS + 10**7, is_spot=True), "preemption"),
        (NodeView("node", "u", START_MS, is_spot=True), "node"),
        (node(taints=[TAINT]), "maintenance"),
        (node(labels={PLANNED: "1799999999"}), "node"),
        (None, "node"),
    ],
    ids=["gone", "made anew", "there", "announced", "announced for later", "unknown"],
)
def test_what_became_of_the_node_tells_the_cause(view: NodeView | None, cause: str) -> None:
    """Only what is sure: all else stays a node's fault."""
    world = training()
    lost(world)
    if view:
        world.nodes["node"] = view
    world.now_ms += 1_000
    world.settle()
    assert cause_and_message(world)[0] == cause


def test_a_preempted_pod_tells_the_cause() -> None:
    """The scheduler's words on the pod are enough."""
    world = training()
    pod = world.pod("j-1-slice-0")
    reason = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    pod["status"]["conditions"] = [reason | {"message": "for a more urgent job"}]
    lost(world, pod=pod["metadata"]["name"])
    cause, message = cause_and_message(world)
    assert cause == "preemption"
    assert "for a more urgent job" in message


def killed_for_memory(world: World, when: str, at_ms: int, exit_code: int = 137) -> str:
    """The kubelet says so of a container; the name of its pod."""
    pod = world.pod("j-1-slice-0")
    end = {"reason": "OOMKilled", "exitCode": exit_code, "finishedAt": rfc3339(at_ms)}
    pod["status"]["containerStatuses"] = [{"name": "trainer", "state": {"running": {}}}]
    pod["status"]["containerStatuses"][0][when] = {"terminated": end}
    return str(pod["metadata"]["name"])


@pytest.mark.parametrize("when", ["state", "lastState"])
@pytest.mark.parametrize("is_back", [False, True])
def test_a_container_that_was_killed_for_memory_is_told(when: str, *, is_back: bool) -> None:
    """Once, and whether or not its agent is back; cause and budget stay the node's."""
    world = training()
    lost(world, pod=(name := world.pod("j-1-slice-0")["metadata"]["name"]))
    place = {"slice": 0, "host": 1, "node": "node", "pod": name, "ip": "10.0.0.1"}
    if is_back:
        joined = event(world.now_ms, EventKind.MEMBER_JOINED, **place)
        world.readings.append(told(joined, first=21))
        world.settle()
    killed_for_memory(world, when, world.now_ms + 1_000)
    world.now_ms += 3_000
    world.settle()
    [incident] = world.status["incidents"]
    assert (incident["cause"], incident["rung"]) == ("node", "R1" if is_back else "R2")
    assert incident["message"].startswith("killed: out of memory: ")
    assert incident["message"].count("out of memory") == 1


@pytest.mark.parametrize(("late_ms", "exit_code"), [(-60_000, 137), (60_000, 137), (0, 1)])
def test_memory_explains_only_what_it_ended(late_ms: int, exit_code: int) -> None:
    """Not a loss of long before or after; nor a container that ended by itself."""
    world = training()
    at_ms = world.now_ms + late_ms
    lost(world, pod=killed_for_memory(world, "lastState", at_ms, exit_code))
    assert cause_and_message(world) == ("node", "killed")


def test_late_news_explain_nothing() -> None:
    """A node that goes long after the loss went for another reason."""
    world = with_node(labels=SPOT)
    lost(world)
    world.now_ms += 3_600_000
    world.nodes["node"] = NodeView("node", "u", START_MS, is_spot=True, is_gone=True)
    world.settle()
    assert cause_and_message(world)[0] == "node"


def test_a_notice_survives_its_way() -> None:
    """What the operator sends is what the coordinator reads."""
    notice = node(taints=[TAINT]).notice
    assert notice is not None
    assert Notice.from_json(notice.to_json()) == notice
