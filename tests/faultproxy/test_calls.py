"""Requests are read as Kubernetes' authorization reads them; names lose what was drawn."""

import json

import pytest

from tests.faultproxy.calls import Call, Object
from tests.faultproxy.faults import Cut, Match, Rule
from tests.faultproxy.names import Names
from tests.faultproxy.watches import coalesced

_JOBS = "/apis/tpujob.dev/v1alpha1/namespaces/n/tputrainingjobs"


@pytest.mark.parametrize(
    ("method", "path", "query", "call"),
    [
        ("GET", "/api/v1/nodes", {}, Call("list", "nodes")),
        ("GET", "/api/v1/pods", {"watch": "true"}, Call("watch", "pods")),
        ("GET", "/api/v1/namespaces/n", {}, Call("get", "namespaces", "", "n")),
        ("GET", "/apis/batch/v1/namespaces/n/jobs", {}, Call("list", "jobs", "n")),
        ("PATCH", f"{_JOBS}/j/status", {}, Call("patch", "tputrainingjobs", "n", "j", "status")),
        ("DELETE", "/api/v1/namespaces/n/pods/p", {}, Call("delete", "pods", "n", "p")),
        ("POST", "/api/v1/namespaces/n/secrets", {}, Call("create", "secrets", "n", "made")),
        ("GET", "/apis/batch/v1", {}, Call("get")),
    ],
)
def test_call_is_read_from_the_request(
    method: str, path: str, query: dict[str, str], call: Call
) -> None:
    """Verb, resource, namespace, name and subresource come from method, address and body."""
    assert Call.of(method, path, query, {"metadata": {"name": "made"}}) == call


def test_names_are_equal_in_every_run() -> None:
    """UIDs of jobs and suffixes of pods are left out; other names stay."""
    names = Names()
    job = {"kind": "TPUTrainingJob", "metadata": {"uid": "0a1b2c3d-1111", "name": "j"}}
    names.learn(job)
    assert names.of("secrets", "j-token-0a1b2c3d") == "j-token-uid1"
    assert names.of("pods", "j-1-slice-0-0-x7k2p") == "j-1-slice-0-0"
    assert names.of("jobs", "j-1-slice-0") == "j-1-slice-0"


def test_rule_applies_from_the_nth_match_on() -> None:
    """Requests before the n-th and after the last of them are served as usual."""
    rule = Rule(Match("delete"), Cut(), nth=2, times=2)
    delete = Call("delete", "pods", "n", "p-11111")
    judged = [rule.judge(call, Names()) for call in (delete, Call("get"), *[delete] * 3)]
    assert judged == [None, None, Cut(), Cut(), None]
    assert rule.hits == 2


def test_coalesced_events_tell_the_last_state() -> None:
    """The last event of an object stays; of one that came and went, none."""
    batch = [
        _event("ADDED", "a", 1),
        _event("ADDED", "b", 2),
        _event("MODIFIED", "a", 3),
        _event("MODIFIED", "c", 4),
        _event("DELETED", "b", 5),
        _event("DELETED", "c", 6),
    ]
    assert coalesced(batch) == [_event("ADDED", "a", 3), _event("DELETED", "c", 6)]


def _event(kind: str, uid: str, version: int) -> bytes:
    obj: Object = {"metadata": {"uid": uid, "resourceVersion": str(version)}}
    return _line({"type": kind, "object": obj})


def _line(event: Object) -> bytes:
    return json.dumps(event).encode() + b"\n"
