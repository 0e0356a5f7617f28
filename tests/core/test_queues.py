"""Jobs in a queue of Kueue: it starts and stops them, and the operator accounts for the time."""

from __future__ import annotations

from typing import Any

from tests.core.histories import event, loss
from tests.core.stories import told
from tests.core.world import World, job_object
from tpujob_agent.protocol import EventKind
from tpujob_operator.core.kinds import JOB_SET, POD
from tpujob_operator.core.quota import Wait
from tpujob_operator.core.timetypes import TimeType


def queued(**spec: Any) -> World:
    """A job that waits for quota."""
    world = World(obj=job_object(queue="research", **spec), quota=Wait("not enough v5e"))
    world.settle()
    return world


def jobset(world: World) -> dict[str, Any]:
    """Its only JobSet."""
    (found,) = world.objects[JOB_SET].values()
    return found


def decide_quota(world: World, *, is_given: bool) -> None:
    """Kueue gives quota, or takes it back."""
    jobset(world)["spec"]["suspend"] = not is_given
    world.settle()


def training() -> World:
    """A job that has got its quota and trains."""
    world = queued()
    decide_quota(world, is_given=True)
    world.run_pods()
    world.now_ms += 5_000
    world.settle()
    return world


def test_a_job_waits_in_its_queue() -> None:
    """Kueue finds its JobSet by the label, and nobody else starts it; status tells why it waits."""
    world = queued()
    assert jobset(world)["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert jobset(world)["spec"]["suspend"] is True
    assert world.objects[POD] == {}
    assert world.status["state"] == "Queued"
    assert world.condition("Admitted") == ("False", "Queued")
    assert "not enough v5e" in world.message("Admitted")
    before = world.history.ledger.view(world.now_ms).by_type_ms.get(TimeType.QUEUED, 0)
    world.now_ms += 60_000
    world.settle()
    after = world.history.ledger.view(world.now_ms).by_type_ms[TimeType.QUEUED]
    assert after - before == 60_000
    assert world.notes.count("Queued") == 1


def test_quota_starts_it() -> None:
    """From then on its time is that of any other job."""
    world = training()
    assert world.condition("Admitted") == ("True", "Admitted")
    assert world.notes.count("Admitted") == 1
    assert world.status["state"] == "Starting"
    assert world.history.ledger.type_now is TimeType.IMAGE


def test_an_eviction_costs_no_budget() -> None:
    """What its hosts say when they leave is no incident; it goes on when it has quota again."""
    world = training()
    decide_quota(world, is_given=False)
    at = world.now_ms
    gone = loss(at + 10, at + 5, cause="preemption")
    spent = event(at + 20, EventKind.GAVE_UP, cause="preemption", budget="x", message="spent")
    world.readings.append(told(gone, spent))
    world.now_ms += 1_000
    world.settle()
    assert world.status["state"] == "Queued"
    assert world.status["incidents"] == []
    assert all(not budget["used"] for budget in world.status["budgets"].values())
    assert world.notes.count("Evicted") == 1
    assert world.deleted == []
    decide_quota(world, is_given=True)
    assert world.condition("Admitted") == ("True", "Admitted")
    assert world.condition("Failed")[0] == "False"
    assert world.status["attempt"] == 1


def _refused(*, committed: int) -> World:
    """A job that has trained on nodes that Kueue will not ask for again."""
    world = training()
    if committed:
        at = world.now_ms
        world.readings.append(told(event(at, EventKind.COMMITTED, step=committed)))
        world.settle()
    world.quota = Wait("its nodes are gone", is_refused=True)
    decide_quota(world, is_given=False)
    return world


def test_quota_refused_for_good_is_asked_for_anew() -> None:
    """The run time of nodes made for one JobSet is over: another one goes on, and nobody pays."""
    world = _refused(committed=40)
    assert [*world.objects[JOB_SET]] == ["j-2"]
    assert world.status["state"] == "Queued"
    assert (world.status["attempt"], world.status["restarts"]) == (2, 0)
    assert all(not budget["used"] for budget in world.status["budgets"].values())
    assert world.notes.count("NewAttempt") == 1
    world.now_ms += 60_000  # it is refused as well: once is enough
    world.settle()
    assert world.status["attempt"] == 2


def test_an_attempt_that_got_nowhere_waits_when_its_quota_is_refused() -> None:
    """Another one would be refused for the same reason: the condition says what to do."""
    world = _refused(committed=0)
    assert [*world.objects[JOB_SET]] == ["j-1"]
    assert "its nodes are gone" in world.message("Admitted")


def test_a_suspended_job_gives_up_its_place() -> None:
    """Kueue would start again what somebody else suspends; resumed, it waits anew."""
    world = training()
    world.obj["spec"]["suspend"] = True
    world.settle()
    assert world.objects[JOB_SET] == {}
    assert world.objects[POD] == {}
    assert world.status["state"] == "Suspended"
    assert world.history.ledger.type_now is TimeType.SUSPENDED
    world.now_ms += 60_000
    world.settle()
    assert world.objects[JOB_SET] == {}
    world.obj["spec"]["suspend"] = False
    world.settle()
    assert [*world.objects[JOB_SET]] == ["j-2"]
    assert world.status["state"] == "Queued"
    assert world.status["restarts"] == 0


def test_a_job_created_suspended_has_no_place_yet() -> None:
    """Kueue would start it."""
    world = queued(suspend=True)
    assert world.objects[JOB_SET] == {}
    assert world.status["state"] == "Suspended"
    world.obj["spec"]["suspend"] = False
    world.settle()
    assert world.status["state"] == "Queued"


def _placement(world: World) -> tuple[dict[str, str], dict[str, str]]:
    """What JobSet and Kueue are told about the places of slices."""
    template = jobset(world)["spec"]["replicatedJobs"][1]["template"]
    pods = template["spec"]["template"]["metadata"]["annotations"]
    asked = {key: value for key, value in pods.items() if key.startswith("kueue.x-k8s.io/")}
    return template["metadata"].get("annotations", {}), asked


def test_either_kueue_or_jobset_places_slices() -> None:
    """Kueue if the job names the label of a topology; it is asked for a domain of each slice."""
    pool = "cloud.google.com/gke-nodepool"
    by_jobset = {"alpha.jobset.sigs.k8s.io/exclusive-topology": pool}
    assert _placement(queued(topology="4x4")) == (by_jobset, {})
    by_kueue = {
        "kueue.x-k8s.io/podset-slice-required-topology": pool,
        "kueue.x-k8s.io/podset-slice-size": "4",
    }
    world = queued(topology="4x4", queueTopologyLabel=pool)
    assert _placement(world) == ({}, by_kueue)
    coordinator = jobset(world)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    assert not any(key.startswith("kueue") for key in coordinator["metadata"]["annotations"])


def test_another_queue_is_another_attempt() -> None:
    """And without a queue the job does not wait."""
    world = queued()
    world.obj["spec"]["queue"] = "production"
    world.settle()
    assert jobset(world)["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "production"
    assert (world.status["state"], world.status["attempt"]) == ("Queued", 2)
    del world.obj["spec"]["queue"]
    world.settle()
    assert jobset(world)["spec"]["suspend"] is False
    assert world.condition("Admitted") == ("True", "Admitted")
    assert world.status["state"] == "Pending"
