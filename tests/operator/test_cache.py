"""The cache: newest version wins, lost pods are remembered, ghosts are found."""

from typing import Any

from tpujob_operator.core.kinds import JOB, JOB_SET, NODE, POD, TPU_TRAINING_JOB, Kind
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


def thing(kind: Kind, name: str, version: int, uid: str = "", owner: str = "") -> dict[str, Any]:
    """An object of attempt 1 of job ``j``."""
    labels = {"tpujob.dev/job": "j", "tpujob.dev/attempt": "1"}
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "ns",
        "uid": uid or f"uid-{name}",
        "resourceVersion": str(version),
        "labels": {} if kind is TPU_TRAINING_JOB else labels,
        "ownerReferences": [reference(kind, owner)] if kind in _OWNERS else [],
    }
    return {"kind": kind.kind, "metadata": metadata, "status": {"phase": "Running"}}


def cache() -> tuple[Cache, list[JobKey]]:
    """A cache and the keys it asks to be looked at."""
    changed: list[JobKey] = []
    return Cache(changed.append), changed


def test_older_versions_are_ignored() -> None:
    """Own writes put into the cache are not undone by watch events that were under way."""
    store, changed = cache()
    store.put(TPU_TRAINING_JOB, thing(TPU_TRAINING_JOB, "j", 7))
    store.observe(TPU_TRAINING_JOB, "MODIFIED", thing(TPU_TRAINING_JOB, "j", 5))
    store.observe(TPU_TRAINING_JOB, "MODIFIED", thing(TPU_TRAINING_JOB, "j", 7))
    job = store.job(KEY)
    assert job is not None
    assert job["metadata"]["resourceVersion"] == "7"
    assert changed == [KEY]


def test_deletion_of_a_predecessor_does_not_remove_its_successor() -> None:
    """A late DELETED event of an object removes no namesake."""
    store, _ = cache()
    store.put(JOB, thing(JOB, "a", 9, uid="new"))
    store.observe(JOB, "DELETED", thing(JOB, "a", 10, uid="old"))
    assert [item["metadata"]["uid"] for item in store.children(KEY, JOB)] == ["new"]


def test_lost_pods_are_remembered_as_long_as_their_job() -> None:
    """A pod that is gone leaves a tombstone until its Job is gone too."""
    store, _ = cache()
    job = thing(JOB, "a", 1)
    pod = thing(POD, "a-0", 2, owner="uid-a")
    store.put(JOB, job)
    store.put(POD, pod)
    store.observe(POD, "DELETED", pod)
    assert [stone.name for stone in store.tombstones(KEY)] == ["a-0"]
    store.observe(JOB, "DELETED", job)
    assert store.tombstones(KEY) == ()


def test_doomed_objects_are_known_until_they_are_gone() -> None:
    """What we have asked to delete counts as being deleted, whatever late events say."""
    store, _ = cache()
    store.put(JOB, thing(JOB, "a", 1))
    store.doom("uid-a")
    store.observe(JOB, "MODIFIED", thing(JOB, "a", 2))
    assert "uid-a" in store.doomed
    store.observe(JOB, "DELETED", thing(JOB, "a", 3))
    assert store.doomed == frozenset()


def test_ghosts_are_what_a_listing_lacks() -> None:
    """Only objects that are older than a listing, and not in it, are gone."""
    store, _ = cache()
    for number, name in enumerate(("alive", "ghost", "newer")):
        store.put(JOB_SET, thing(JOB_SET, name, 10 * (number + 1)))
    listed = [thing(JOB_SET, "alive", 10)]
    found = store.prune(JOB_SET, listed, before=25)
    assert [item["metadata"]["name"] for item in found] == ["ghost"]


def test_nothing_is_kept_of_a_job_that_is_gone() -> None:
    """When the job and all its children are gone, so is its place in the cache."""
    store, _ = cache()
    store.put(TPU_TRAINING_JOB, thing(TPU_TRAINING_JOB, "j", 1))
    store.put(POD, thing(POD, "a-0", 2))
    store.observe(POD, "DELETED", thing(POD, "a-0", 3))
    store.observe(TPU_TRAINING_JOB, "DELETED", thing(TPU_TRAINING_JOB, "j", 4))
    assert store.keys() == []
    assert store.job(KEY) is None
    assert store.tombstones(KEY) == ()


def test_foreign_objects_with_the_labels_of_a_job_are_none_of_its_children() -> None:
    """A debug pod with copied labels must not hold up the next attempt, nor be deleted."""
    store, changed = cache()
    debug = thing(POD, "debug", 1)
    debug["metadata"]["ownerReferences"] = []
    assert not store.put(POD, debug)
    assert list(store.children(KEY, POD)) == []
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
        nodes.observe(NODE, "MODIFIED", tpu_node(version))
    assert changed == ["n"]
    nodes.observe(NODE, "MODIFIED", tpu_node(5, **spot))
    nodes.observe(NODE, "MODIFIED", tpu_node(4))
    assert changed == ["n", "n"]
    assert nodes.find(["n", "other"])["n"].is_spot


def test_deleted_nodes_are_remembered_until_a_namesake_comes() -> None:
    """What a node was tells why its host was lost; a deletion of a predecessor means nothing."""
    nodes = NodeCache()
    nodes.put(NODE, tpu_node(1))
    nodes.observe(NODE, "DELETED", tpu_node(2))
    assert nodes.find(["n"])["n"].is_gone
    nodes.put(NODE, tpu_node(3, uid="new"))
    nodes.observe(NODE, "DELETED", tpu_node(4))
    found = nodes.find(["n"])["n"]
    assert (found.uid, found.is_gone) == ("new", False)


def test_nodes_that_a_listing_lacks_are_found() -> None:
    """Like ghosts of other kinds, unless they came after the listing."""
    nodes = NodeCache()
    nodes.put(NODE, tpu_node(5))
    assert list(nodes.prune(NODE, [], before=4)) == []
    assert list(nodes.prune(NODE, [tpu_node(5)], before=9)) == []
    (ghost,) = nodes.prune(NODE, [], before=9)
    nodes.remove(NODE, ghost)
    assert nodes.find(["n"])["n"].is_gone
