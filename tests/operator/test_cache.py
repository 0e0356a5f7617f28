"""The cache: newest version wins, lost pods are remembered, ghosts are found."""

from typing import Any

from tpujob_operator.core.kinds import JOB, JOB_SET, POD, TPU_TRAINING_JOB, Kind
from tpujob_operator.core.snapshot import JobKey
from tpujob_operator.shell.cache import Cache

KEY = JobKey("ns", "j")


def thing(kind: Kind, name: str, version: int, uid: str = "", owner: str = "") -> dict[str, Any]:
    """An object of job ``j``."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "ns",
        "uid": uid or f"uid-{name}",
        "resourceVersion": str(version),
        "labels": {} if kind is TPU_TRAINING_JOB else {"tpujob.dev/job": "j"},
        "ownerReferences": [{"uid": owner, "controller": True}] if owner else [],
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
