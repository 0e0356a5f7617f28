"""The cache: newest version wins, lost pods are remembered, ghosts are found."""

import math
from typing import Any

import pytest

from tpujob_operator.core.kinds import JOB, JOB_SET, NODE, POD, TPU_TRAINING_JOB, Kind, Ref
from tpujob_operator.core.snapshot import JobKey
from tpujob_operator.shell.cache import Cache
from tpujob_operator.shell.nodecache import NodeCache

KEY = JobKey("ns", "j")


_OWNERS = {JOB_SET: (TPU_TRAINING_JOB, "j"), JOB: (JOB_SET, "j-1"), POD: (JOB, "j-1-slice-0")}


def reference(kind: Kind, uid: str) -> dict[str, Any]:
    """What an object of this kind says of its controller."""
    owner, name = _OWNERS[kind]
    head = {"apiVersion": owner.api_version, "kind": owner.kind, "name": name}
    return {**head, "uid": uid or "uid-owner", "controller": True}


def thing(
    kind: Kind, name: str, version: int, uid: str = "", *, owner: str = "", at: str = "ns"
) -> dict[str, Any]:
    """An object of attempt 1 of job ``j``."""
    labels = {"tpujob.dev/job": "j", "tpujob.dev/attempt": "1"}
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": at,
        "uid": uid or f"uid-{name}",
        "resourceVersion": str(version),
        "labels": {} if kind is TPU_TRAINING_JOB else labels,
        "ownerReferences": [reference(kind, owner)] if kind in _OWNERS else [],
    }
    return {"kind": kind.kind, "metadata": metadata, "spec": {}, "status": {"phase": "Running"}}


def cache() -> tuple[Cache, list[JobKey]]:
    """A cache and the keys it asks to be looked at."""
    changed: list[JobKey] = []
    return Cache(changed.append, lambda: 1), changed


def test_older_versions_are_ignored() -> None:
    """Own writes put into the cache are not undone by watch events that were under way."""
    store, changed = cache()
    store.put(TPU_TRAINING_JOB, thing(TPU_TRAINING_JOB, "j", 7))
    store.put(TPU_TRAINING_JOB, thing(TPU_TRAINING_JOB, "j", 5))
    store.put(TPU_TRAINING_JOB, thing(TPU_TRAINING_JOB, "j", 7))
    job = store.job(KEY)
    assert job is not None
    assert job["metadata"]["resourceVersion"] == "7"
    assert changed == [KEY]


def test_deletion_of_a_predecessor_does_not_remove_its_successor() -> None:
    """A late DELETED event of an object removes no namesake."""
    store, _ = cache()
    store.put(JOB, thing(JOB, "a", 9, uid="new"))
    store.remove(JOB, thing(JOB, "a", 10, uid="old"))
    assert [job.uid for job in store.jobs(KEY)] == ["new"]


def test_lost_pods_are_remembered_as_long_as_their_job() -> None:
    """A pod that is gone leaves a tombstone until its Job is gone too."""
    store, _ = cache()
    job = thing(JOB, "a", 1)
    pod = thing(POD, "a-0", 2, owner="uid-a")
    store.put(JOB, job)
    store.put(POD, pod)
    store.remove(POD, pod)
    assert [stone.name for stone in store.tombstones(KEY)] == ["a-0"]
    store.remove(JOB, job)
    assert store.tombstones(KEY) == ()


def test_doomed_objects_are_known_until_they_are_gone() -> None:
    """What we have asked to delete counts as being deleted, whatever late events say."""
    store, _ = cache()
    store.put(JOB, thing(JOB, "a", 1))
    store.doom("uid-a")
    store.put(JOB, thing(JOB, "a", 2))
    assert [job.is_deleting for job in store.jobs(KEY)] == [True]
    store.remove(JOB, thing(JOB, "a", 3))
    store.doom("uid-a")  # its answer came behind the watch
    store.put(JOB, thing(JOB, "a", 4, uid="another"))
    assert [job.is_deleting for job in store.jobs(KEY)] == [False]


def test_a_late_answer_brings_nothing_back() -> None:
    """The watch may tell of an object's end before the answer to our last write of it is read."""
    store, _ = cache()
    store.put(JOB, thing(JOB, "a", 1))
    store.remove(JOB, thing(JOB, "a", 5))
    assert not store.put(JOB, thing(JOB, "a", 4))
    assert store.jobs(KEY) == ()
    assert not store.put(JOB, thing(JOB, "a", 4), listed_at=4)  # nor does a listing of before
    assert store.put(JOB, thing(JOB, "a", 6))  # its labels had been taken off for a while


def test_what_a_deletion_does_not_find_is_gone() -> None:
    """An answer that there is no such object ends the ghost that no watch has told of."""
    store, changed = cache()
    store.put(JOB, thing(JOB, "a", 1))
    store.lose(Ref(JOB, "ns", "a", "another"))
    assert len(store.jobs(KEY)) == 1
    store.lose(Ref(JOB, "ns", "a", "uid-a"))
    assert store.jobs(KEY) == ()
    assert changed == [KEY, KEY]


def test_ghosts_are_what_a_listing_lacks() -> None:
    """Only objects that are older than a listing, and not in it, are gone."""
    store, _ = cache()
    for number, name in enumerate(("alive", "ghost", "newer")):
        store.put(JOB_SET, thing(JOB_SET, name, 10 * (number + 1)))
    assert store.prune(JOB_SET, None, {"uid-alive"}, 25) == 1
    assert [jobset.name for jobset in store.jobsets(KEY)] == ["alive", "newer"]


@pytest.mark.parametrize("kind", [JOB_SET, TPU_TRAINING_JOB])
def test_a_listing_of_one_namespace_says_nothing_about_others(kind: Kind) -> None:
    """Nor does that of one kind about another one."""
    store, _ = cache()
    for namespace in ("a", "b"):
        for other in (JOB, JOB_SET, TPU_TRAINING_JOB):
            store.put(other, thing(other, "j", 10, uid=f"{other.kind}-{namespace}", at=namespace))
    assert store.prune(kind, "b", set(), 99) == 1
    assert store.job(JobKey("a", "j")) is not None
    assert len(store.jobsets(JobKey("a", "j"))) == len(store.jobs(JobKey("b", "j"))) == 1
    gone = JobKey("b", "j")
    assert (store.job(gone) is None) == (kind is TPU_TRAINING_JOB)
    assert (store.jobsets(gone) == ()) == (kind is JOB_SET)


def test_a_pod_that_a_listing_lacks_is_remembered_as_lost() -> None:
    """As if its end had been seen."""
    store, _ = cache()
    store.put(JOB, thing(JOB, "a", 1))
    store.put(POD, thing(POD, "a-0", 2, owner="uid-a"))
    store.prune(POD, "ns", set(), 9)
    assert [stone.name for stone in store.tombstones(KEY)] == ["a-0"]


@pytest.mark.parametrize("kind", [JOB, TPU_TRAINING_JOB])
def test_a_listing_of_a_restored_cluster_replaces_everything(kind: Kind) -> None:
    """Its versions are lower, what was made since the backup is gone, and the rest is older."""
    store, changed = cache()
    store.put(kind, thing(kind, "j", 500))
    changed.clear()
    assert not store.put(kind, thing(kind, "j", 100), listed_at=120)  # an own write is newer
    assert store.put(kind, thing(kind, "j", 100), listed_at=math.inf)
    assert changed == [KEY]
    assert store.prune(kind, None, set(), math.inf) == 1
    assert store.put(kind, thing(kind, "j", 90), listed_at=math.inf)


def test_a_listing_corrects_what_was_missed_and_wakes_nobody_else() -> None:
    """What is known as it is listed is no news."""
    store, changed = cache()
    store.put(JOB, thing(JOB, "a", 5))
    store.put(JOB, thing(JOB, "b", 6))
    changed.clear()
    assert not store.put(JOB, thing(JOB, "a", 5), listed_at=9)
    assert changed == []
    assert store.put(JOB, thing(JOB, "b", 7), listed_at=9)


def test_an_object_whose_labels_change_moves() -> None:
    """To another job, or to none."""
    store, _ = cache()
    job = thing(JOB, "a", 1)
    store.put(JOB, job)
    moved = thing(JOB, "a", 2)
    moved["metadata"]["labels"]["tpujob.dev/job"] = "k"
    moved["metadata"]["ownerReferences"][0]["name"] = "k-1"
    store.put(JOB, moved)
    assert store.jobs(KEY) == ()
    assert [item.name for item in store.jobs(JobKey("ns", "k"))] == ["a"]
    bare = thing(JOB, "a", 3)
    bare["metadata"]["labels"] = {}
    assert not store.put(JOB, bare)
    assert store.all_keys() == set()


def test_managed_fields_are_not_kept() -> None:
    """They are half of an object, and nobody reads them."""
    store, _ = cache()
    job = thing(TPU_TRAINING_JOB, "j", 1)
    job["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    store.put(TPU_TRAINING_JOB, job)
    known = store.job(KEY)
    assert known is not None
    assert "managedFields" not in known["metadata"]


def test_nothing_is_kept_of_a_job_that_is_gone() -> None:
    """When the job and all its children are gone, so is its place in the cache."""
    store, _ = cache()
    store.put(TPU_TRAINING_JOB, thing(TPU_TRAINING_JOB, "j", 1))
    store.put(POD, thing(POD, "a-0", 2))
    store.remove(POD, thing(POD, "a-0", 3))
    store.remove(TPU_TRAINING_JOB, thing(TPU_TRAINING_JOB, "j", 4))
    assert store.keys() == []
    assert store.job(KEY) is None
    assert store.tombstones(KEY) == ()
    assert store.all_keys() == set()


def test_asking_leaves_nothing_behind() -> None:
    """Not a place for a job that there is not."""
    store, _ = cache()
    store.remove(POD, thing(POD, "a-0", 1))
    store.doom("uid-a-0")
    assert (store.pods(KEY), store.tombstones(KEY), store.all_keys()) == ((), (), set())


def test_foreign_objects_with_the_labels_of_a_job_are_none_of_its_children() -> None:
    """A debug pod with copied labels must not hold up the next attempt, nor be deleted."""
    store, changed = cache()
    debug = thing(POD, "debug", 1)
    debug["metadata"]["ownerReferences"] = []
    assert not store.put(POD, debug)
    assert store.pods(KEY) == ()
    assert changed == []


def tpu_node(version: int, uid: str = "u", **labels: str) -> dict[str, Any]:
    """A node as the API server returns it."""
    return {
        "metadata": {
            "name": "n",
            "uid": uid,
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": labels,
        }
    }


def test_nodes_wake_only_when_something_that_matters_changes() -> None:
    """A kubelet writes its node's status all the time."""
    nodes, changed = NodeCache(), list[str]()
    nodes.watchers.append(changed.append)
    spot = {"cloud.google.com/gke-spot": "true"}
    for version in (1, 2, 3):
        nodes.put(NODE, tpu_node(version))
    assert changed == ["n"]
    nodes.put(NODE, tpu_node(5, **spot))
    nodes.put(NODE, tpu_node(4))
    assert changed == ["n", "n"]
    assert nodes.find(["n", "other"])["n"].is_spot


def test_deleted_nodes_are_remembered_until_a_namesake_comes() -> None:
    """What a node was tells why its host was lost; a deletion of a predecessor means nothing."""
    nodes = NodeCache()
    nodes.put(NODE, tpu_node(1))
    nodes.remove(NODE, tpu_node(2))
    assert nodes.find(["n"])["n"].is_gone
    nodes.put(NODE, tpu_node(3, uid="new"))
    nodes.remove(NODE, tpu_node(4))
    found = nodes.find(["n"])["n"]
    assert (found.uid, found.is_gone) == ("new", False)


def test_nodes_that_a_listing_lacks_are_gone() -> None:
    """Like ghosts of other kinds, unless they came after the listing."""
    nodes = NodeCache()
    nodes.put(NODE, tpu_node(5))
    assert nodes.prune(NODE, None, set(), 4) == 0
    assert nodes.prune(NODE, None, {"u"}, 9) == 0
    assert nodes.prune(NODE, None, set(), 9) == 1
    assert nodes.find(["n"])["n"].is_gone


def test_a_node_of_a_restored_cluster_is_taken_as_it_is_listed() -> None:
    """Though it is older than what was known."""
    nodes = NodeCache()
    nodes.put(NODE, tpu_node(500, **{"cloud.google.com/gke-spot": "true"}))
    assert not nodes.put(NODE, tpu_node(100))
    assert nodes.put(NODE, tpu_node(100), listed_at=math.inf)
    assert not nodes.find(["n"])["n"].is_spot


def test_a_deletion_is_dated_when_it_is_seen_first() -> None:
    """Later versions of the pod, and its end, do not begin the time again."""
    seen_ms = 5
    store = Cache(lambda _: None, lambda: seen_ms)
    store.put(JOB, thing(JOB, "a", 1))
    pod = thing(POD, "a-0", 2, owner="uid-a")
    store.put(POD, pod)
    assert store.pods(KEY)[0].deletion_seen_ms == 0
    pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:30Z", "resourceVersion": "3"}
    pod["metadata"]["deletionGracePeriodSeconds"] = 30
    for seen_ms in (7, 9):  # noqa: B007 - read by the cache
        store.put(POD, pod)
        pod["metadata"]["resourceVersion"] = "4"
    assert store.pods(KEY)[0].deletion_seen_ms == 7
    assert store.pods(KEY)[0].grace_ends_ms == 30_007
    store.remove(POD, pod)
    assert store.tombstones(KEY)[0].deletion_seen_ms == 7
