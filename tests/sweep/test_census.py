"""What a census counts: each object that was made while its owner was there."""

from __future__ import annotations

from localcluster.kubeapi import Object
from tests.sweep.census import Population
from tpujob_operator.core.kinds import JOB, JOB_SET, POD, Kind


def _thing(kind: Kind, name: str, uid: str, version: int, owner: str = "") -> Object:
    meta: Object = {"name": name, "uid": uid, "resourceVersion": str(version)}
    if owner:
        meta["ownerReferences"] = [{"uid": owner}]
    return {"kind": kind.kind, "metadata": meta}


def test_what_is_made_after_its_owner_is_not_counted() -> None:
    """Nor what belongs to that; the watches of two kinds may be apart."""
    seen = Population()
    seen.take("ADDED", JOB_SET, _thing(JOB_SET, "j-1", "set", 1))
    seen.take("ADDED", JOB, _thing(JOB, "j-1-a", "first", 2, "set"))
    seen.take("DELETED", JOB, _thing(JOB, "j-1-a", "first", 6, "set"))
    seen.take("ADDED", JOB, _thing(JOB, "j-1-a", "late", 7, "set"))
    seen.take("ADDED", POD, _thing(POD, "j-1-a-0-abcde", "pod", 8, "late"))
    seen.take("DELETED", JOB, _thing(JOB, "j-1-a", "late", 9, "set"))
    seen.take("DELETED", JOB_SET, _thing(JOB_SET, "j-1", "set", 5))
    assert seen.made == {"jobsets/j-1": 1, "jobs/j-1-a": 1}
    assert seen.deleted == {"jobsets/j-1": 1, "jobs/j-1-a": 1}


def test_what_is_made_again_is_counted() -> None:
    """Its owner is there: somebody has deleted it, and the owner's controller replaces it."""
    seen = Population()
    seen.take("ADDED", JOB_SET, _thing(JOB_SET, "j-1", "set", 1))
    for version in (2, 4):
        job = _thing(JOB, "j-1-a", f"uid{version}", version, "set")
        seen.take("ADDED", JOB, job)
        seen.take("DELETED", JOB, _thing(JOB, "j-1-a", f"uid{version}", version + 1, "set"))
    assert (seen.made["jobs/j-1-a"], seen.deleted["jobs/j-1-a"]) == (2, 2)


def test_pods_that_their_job_replaces_are_counted_once() -> None:
    """The deletion of the first one is the one that somebody has asked for."""
    seen = Population()
    for uid, version in (("one", 2), ("two", 4)):
        pod = _thing(POD, f"j-1-a-0-{uid}xx", uid, version, "job")
        seen.take("ADDED", POD, pod)
        seen.take("DELETED", POD, {**pod, "metadata": {**pod["metadata"], "resourceVersion": "9"}})
    assert seen.made == seen.deleted == {"pods/j-1-a-0": 1}
